"""Judges of the two drafters: the equations in FP64, one row at a time, everything recomputed, no caches.

They read the checkpoint's tensors themselves and share no code with the engine. A judge is given the target's own
values of every token (`taps`, `hidden`); where those come from is the caller's choice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

LANGUAGE = "model.language_model."


def read(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint in FP64."""
    return {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}


def rms(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """RMSNorm over the last dimension."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


class BlockJudge:
    """A DFlash2 draft."""

    def __init__(self, folder: Path) -> None:
        target = read(folder)
        self.w = read(folder / "draft")
        self.config = json.loads((folder / "draft" / "config.json").read_text())
        self.embed, self.head = target[f"{LANGUAGE}embed_tokens.weight"], target["lm_head.weight"]

    def block(self, taps_PF: Tensor, anchor: int) -> Tensor:
        """The normalised rows 1 .. W - 1 [E, C] of the block behind P committed tokens with these features."""
        c, options = self.config, self.config["dflash_config"]
        committed, width = taps_PF.shape[0], options["block_size"]
        context = rms(taps_PF.double() @ self.w["fc.weight"].T, self.w["hidden_norm.weight"])
        ids = [anchor] + [options["mask_token_id"]] * (width - 1)
        r = torch.stack([self.embed[i] for i in ids])
        for layer in range(c["num_hidden_layers"]):
            name = f"layers.{layer}."
            n = rms(r, self.w[name + "input_layernorm.weight"])
            coef = self._coefficients(name + "attention_conv.", n)
            attended = self._attend(name + "self_attn.", self._taps(n, coef[0]), context, committed)
            r = r + self._taps(attended, coef[1])
            n = rms(r, self.w[name + "post_attention_layernorm.weight"])
            coef = self._coefficients(name + "mlp_conv.", n)
            r = r + self._taps(self._mlp(name + "mlp.", self._taps(n, coef[0])), coef[1])
        return rms(r, self.w["norm.weight"])[1:]

    def choose(self, rows_EC: Tensor, anchor: int) -> list[int]:
        """The greedy walk of the candidate selector."""
        before, after = (self.w[f"candidate_selector.{which}_codebook"] for which in ("predecessor", "successor"))
        chosen = [anchor]
        for g in rows_EC:
            logits = self.head @ g
            z = self.w["candidate_selector.hidden_projection.weight"] @ g
            best = torch.argsort(-logits, stable=True)[: self.config["dflash_config"]["selector_top_k"]].tolist()
            scores = [float(logits[c] + (before[chosen[-1]] * z) @ after[c]) for c in best]
            chosen.append(best[scores.index(max(scores))])
        return chosen[1:]

    def _attend(self, name: str, n: Tensor, context: Tensor, committed: int) -> Tensor:
        c = self.config
        heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        source = torch.cat([context, n])
        keys = (source @ self.w[name + "k_proj.weight"].T).view(-1, kv_heads, dim)
        values = (source @ self.w[name + "v_proj.weight"].T).view(-1, kv_heads, dim)
        queries = (n @ self.w[name + "q_proj.weight"].T).view(-1, heads, dim)
        k = rms(keys, self.w[name + "k_norm.weight"])
        turned = torch.stack([torch.stack([self._turn(k[s, g], s) for g in range(kv_heads)]) for s in range(len(k))])
        out = []
        for row in range(n.shape[0]):
            position, mixed = committed + row, []
            oldest = max(0, position - (c["sliding_window"] - 1))
            for head in range(heads):
                group = head * kv_heads // heads
                q = self._turn(rms(queries[row, head], self.w[name + "q_norm.weight"]), position)
                p = torch.softmax(turned[oldest:, group] @ q / dim**0.5, 0)
                mixed.append(p @ values[oldest:, group])
            out.append(torch.cat(mixed))
        return torch.stack(out) @ self.w[name + "o_proj.weight"].T

    def _turn(self, x: Tensor, position: int) -> Tensor:
        half = x.shape[0] // 2
        angle = position * self.config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        a, b = x[:half], x[half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])

    def _mlp(self, name: str, n: Tensor) -> Tensor:
        gate, up, down = (self.w[f"{name}{part}_proj.weight"] for part in ("gate", "up", "down"))
        return (torch.nn.functional.silu(n @ gate.T) * (n @ up.T)) @ down.T

    def _coefficients(self, name: str, n: Tensor) -> Tensor:
        base, size = self.w[name + "base_kernel"], self.config["dflash_config"]["conv_group_size"]
        added = (n @ self.w[name + "kernel_projection.weight"].T).view(-1, 2, 2, base.shape[-1] // size)
        rows = [[[base[s, tap] + added[t, s, tap].repeat_interleave(size) for tap in (0, 1)] for t in range(len(n))]
                for s in (0, 1)]  # fmt: skip
        return torch.stack([torch.stack([torch.stack(taps) for taps in side]) for side in rows])

    def _taps(self, y: Tensor, coef_W2C: Tensor) -> Tensor:
        rows = [coef_W2C[0, 0] * y[0]]
        rows += [coef_W2C[t, 0] * y[t] + coef_W2C[t, 1] * y[t - 1] for t in range(1, len(y))]
        return torch.stack(rows)


@dataclass
class Entries:
    """What attention of the MTP layer may look back at."""

    latents: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    gates: list[Tensor] = field(default_factory=list)

    def first(self, count: int) -> "Entries":
        """The first `count` entries; they grow apart from these."""
        return Entries(self.latents[:count], self.keys[:count], self.gates[:count])


class ChainJudge:
    """The MTP layer, entry by entry."""

    def __init__(self, folder: Path) -> None:
        self.c = json.loads((folder / "config.json").read_text())["text_config"]
        tensors = read(folder)
        prefix = f"{LANGUAGE}layers.{self.c['num_hidden_layers']}."
        self.w = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        self.embed, self.head = tensors[f"{LANGUAGE}embed_tokens.weight"], tensors["lm_head.weight"]

    def entry(self, entries: Entries, token: int, hidden_C: Tensor, seen: list[int] | None) -> tuple[Tensor, list[int]]:
        """Append an entry; its r and the positions it attended to, which are `seen` where that is given."""
        halves = (rms(self.embed[token], self.w["enorm.weight"]), rms(hidden_C.double(), self.w["hnorm.weight"]))
        z = self.w["eh_proj.weight"] @ torch.cat(halves)
        y, seen = self._attend(entries, rms(z, self.w["input_layernorm.weight"]), seen)
        z = z + y
        z = z + self._experts(rms(z, self.w["post_attention_layernorm.weight"]))
        return rms(z, self.w["shared_head.norm.weight"]), seen

    def committed(self, hidden_LC: Tensor, tokens: Sequence[int]) -> tuple[Entries, list[tuple[Tensor, list[int]]]]:
        """The entries made from the target's hiddens of L tokens, each with its r and set; `tokens` has L + 1."""
        entries = Entries()
        made = [self.entry(entries, tokens[i + 1], hidden, None) for i, hidden in enumerate(hidden_LC)]
        return entries, made

    def chain(
        self, entries: Entries, r: Tensor, seen: list[int], count: int, *, share: bool
    ) -> tuple[list[Tensor], list[int]]:
        """r of each step and the drafts behind `entries`, whose last one left `r` and attended to `seen`."""
        rs, drafts = [r], [int(torch.argmax(self.head @ r))]
        while len(drafts) < count:
            r, _ = self.entry(entries, drafts[-1], r, seen if share else None)
            rs.append(r)
            drafts.append(int(torch.argmax(self.head @ r)))
        return rs, drafts

    def _attend(self, entries: Entries, x: Tensor, seen: list[int] | None) -> tuple[Tensor, list[int]]:
        def of(name: str) -> Tensor:
            return self.w[f"self_attn.{name}"]

        heads, dim = self.c["num_attention_heads"], self.c["qk_nope_head_dim"]
        qr = rms(of("q_a_proj.weight") @ x, of("q_a_layernorm.weight"))
        entries.latents.append(rms(of("kv_a_proj_with_mqa.weight") @ x, of("kv_a_layernorm.weight")))
        raw = of("indexer.wk.weight") @ x
        centred = (raw - raw.mean()) / torch.sqrt(raw.var(correction=0) + 1e-6)
        entries.keys.append(centred * of("indexer.k_norm.weight") + of("indexer.k_norm.bias"))
        entries.gates.append(of("indexer.index_kpool_compress_gate") @ x)
        if seen is None:
            seen = self._select(entries, qr, of("indexer.weights_proj.weight") @ x)
        q = (of("q_b_proj.weight") @ qr).view(heads, dim)
        kv = torch.stack([of("kv_b_proj.weight") @ entries.latents[s] for s in seen]).view(len(seen), heads, -1)
        mixed = []
        for head in range(heads):
            p = torch.softmax(kv[:, head, :dim] @ q[head] / dim**0.5, 0)
            mixed.append(p @ kv[:, head, dim:])
        return of("o_proj.weight") @ torch.cat(mixed), seen

    def _select(self, entries: Entries, qr: Tensor, w: Tensor) -> list[int]:
        heads, dim, size = self.c["index_n_heads"], self.c["index_head_dim"], self.c["index_kpool"]
        iq = (self.w["self_attn.indexer.wq_b.weight"] @ qr).view(heads, dim)
        ape, total, scores = self.w["self_attn.indexer.index_kpool_compress_ape"], len(entries.keys), []
        for first in range(0, total - size + 1, size):
            share = torch.softmax(torch.stack(entries.gates[first : first + size]) + ape, 0)
            pooled = (share * torch.stack(entries.keys[first : first + size])).sum(0)
            scores.append(float((w * heads**-0.5 * torch.relu(iq @ pooled * dim**-0.5)).sum()))
        best = sorted(range(len(scores)), key=lambda p: (-scores[p], p))[: self.c["index_topk"] // size]
        return [size * p + s for p in sorted(best) for s in range(size)] + [*range(total // size * size, total)]

    def _experts(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(self.w["mlp.gate.weight"] @ x)
        chosen = torch.argsort(-(s + self.w["mlp.gate.e_score_correction_bias"]), stable=True)
        chosen = chosen[: self.c["num_experts_per_tok"]].tolist()
        total = sum(float(s[e]) for e in chosen) + 1e-20
        y = self._swiglu("mlp.shared_experts.", x)
        for e in chosen:
            y = y + self.c["routed_scaling_factor"] * s[e] / total * self._swiglu(f"mlp.experts.{e}.", x)
        return y

    def _swiglu(self, name: str, x: Tensor) -> Tensor:
        limit = self.c["swiglu_limit"]
        gate = (self.w[f"{name}gate_proj.weight"] @ x).clamp(max=limit)
        up = (self.w[f"{name}up_proj.weight"] @ x).clamp(-limit, limit)
        return self.w[f"{name}down_proj.weight"] @ (torch.nn.functional.silu(gate) * up)
