"""Trains the MTP layer and the DFlash2 draft on the target's own text, the target itself frozen.

Both learn to guess as they are used: the MTP layer in a chain of seven, where a later step counts in full only while
all earlier ones were right; the draft in blocks of eight behind positions inside answers, early slots counting more.
"""

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.training.block_draft import draft_blocks, pair_scores
from stack.training.journal import Journal
from stack.training.mtp import MtpChain
from stack.training.optimizer import Optimizer, balance, schedule, trainable
from stack.training.parameters import Tensors, draft_tensors, mtp_tensors
from stack.training.recipe import Clock, Recipe
from stack.training.target import Passed, logits_of, target_forward
from stack.training.target_stage import FROZEN
from stack.training.told import Told

_SAVE_EVERY_S = 90.0
_LOG_EVERY = 20
_KEPT_BACK = 0.05
_DRAFTS = 7
_DEAD_WEIGHT = 0.1
_SLOT_DECAY = 0.85
PREFIX = "draft."


def train_drafts(
    folder: Path,
    told: Told,
    target: Tensors,
    config: dict[str, Any],
    draft_config: dict[str, Any],
    recipe: Recipe,
    journal: Journal,
    *,
    seed: int,
    steps: int | None,
    deadline_s: float,
) -> Tensors | None:
    """MTP tensors by their names and the draft's behind `draft.`; None when the deadline came first."""
    fresh = mtp_tensors(config, seed + 1)
    fresh |= {PREFIX + n: t for n, t in draft_tensors(draft_config, config["hidden_size"], seed + 2).items()}
    tensors = trainable(fresh, told.tokens.device)
    optimizer = Optimizer(tensors, lr=recipe.draft_lr, weight_decay=recipe.weight_decay, frozen=FROZEN)
    facts = optimizer.restore(folder) or {"step": 0, "spent_s": 0.0}
    clock, step = Clock(recipe.drafts_minutes, steps, spent_s=facts["spent_s"]), facts["step"]
    task = _Task(told, target, config, draft_config, recipe)
    last_save = time.monotonic()
    while (share := clock.share(step)) < 1.0:
        loss, seen, load = task.loss(tensors, task.training_rows(seed, step), seed * 1_000_003 + step)
        loss.backward()
        optimizer.step(schedule(step, share, recipe.warmup_steps))
        balance(tensors, load, recipe.balance_speed * (1 - share))
        step += 1
        if step % _LOG_EVERY == 0:
            journal.write(stage="drafts", step=step, share=share, loss=float(loss.detach()), **seen)
        if step % (10 * _LOG_EVERY) == 0:
            _look(task, tensors, journal, step)
        if time.monotonic() - last_save > _SAVE_EVERY_S or time.monotonic() > deadline_s:
            optimizer.save(folder, {"step": step, "spent_s": clock.spent_s})
            last_save = time.monotonic()
            if last_save > deadline_s:
                return None
    _look(task, tensors, journal, step)
    optimizer.save(folder, {"step": step, "spent_s": clock.spent_s})
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _look(task: "_Task", tensors: Tensors, journal: Journal, step: int) -> None:
    with torch.no_grad():
        _, seen, _ = task.loss(tensors, task.kept_rows(), 0)
    journal.write(stage="drafts", step=step, kept_back=True, **seen)


class _Task:
    """Losses of both drafters over rows of told text."""

    def __init__(
        self, told: Told, target: Tensors, config: dict[str, Any], draft_config: dict[str, Any], recipe: Recipe
    ) -> None:
        self._told, self._target, self._recipe = told, target, recipe
        self._config, self._draft_config = config, draft_config
        self._num_training = max(1, int(told.tokens.shape[0] * (1 - _KEPT_BACK)))

    def training_rows(self, seed: int, step: int) -> Tensor:
        """Row numbers of a step."""
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return torch.randint(self._num_training, (self._recipe.draft_rows,), generator=draw)

    def kept_rows(self) -> Tensor:
        """Rows that training never shows."""
        return torch.arange(self._num_training, self._told.tokens.shape[0])[: self._recipe.draft_rows]

    def loss(self, tensors: Tensors, rows: Tensor, seed: int) -> tuple[Tensor, dict[str, float], dict[str, Tensor]]:
        """The loss to descend, tokens that a cycle would commit by each drafter, and expert loads.

        `seed` decides where blocks begin.
        """
        tokens, is_told = self._told.tokens[rows.to(self._told.tokens.device)], self._told.is_told[rows]
        kind = tokens.device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            with torch.no_grad():
                taps = self._draft_config["dflash_config"]["target_layer_ids"]
                passed = target_forward(tokens, self._target, self._config, is_sparse=True, taps=taps)
            chain_loss, chain_length, load = self._chain(tensors, tokens, is_told, passed)
            block_loss, block_length = self._blocks(tensors, tokens, is_told, passed, seed)
        seen = {"mtp_length": float(chain_length), "dflash2_length": float(block_length)}
        return chain_loss + block_loss, seen, load

    def _chain(
        self, tensors: Tensors, tokens: Tensor, is_told: Tensor, passed: Passed
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        own = self._target | {name: t for name, t in tensors.items() if not name.startswith(PREFIX)}
        entries = tokens.shape[1] - _DRAFTS - 1
        chain = MtpChain(tokens[:, 1:-1], passed.hidden[:, :-2], own, self._config)
        r, losses = chain.r, []
        alive = is_told[:, 1 : 1 + entries].float()
        total, count = alive.sum().clamp(min=1.0), torch.zeros((), device=tokens.device)
        for s in range(_DRAFTS):
            if s:
                r = chain.step(_shifted(tokens, s + 1, tokens.shape[1] - 2), r)
            label = tokens[:, 2 + s : 2 + s + entries]
            logits = logits_of(r[:, :entries], self._target)
            inside = is_told[:, 2 + s : 2 + s + entries].float()
            weight = inside * (_DEAD_WEIGHT + (1 - _DEAD_WEIGHT) * alive)
            token_loss = functional.cross_entropy(logits.flatten(0, 1), label.flatten(), reduction="none")
            losses.append((token_loss * weight.flatten()).sum() / weight.sum().clamp(min=1.0))
            alive = alive * inside * (logits.argmax(-1) == label)
            count = count + alive.sum()
        loss = torch.stack(losses).mean() + chain.index_loss
        return loss, 1 + count / total, {chain.load_prefix: chain.load}

    def _blocks(
        self, tensors: Tensors, tokens: Tensor, is_told: Tensor, passed: Passed, seed: int
    ) -> tuple[Tensor, Tensor]:
        own = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        anchors = _anchors(is_told, self._recipe.anchors, _DRAFTS, seed)
        embed, head = self._target["embed_tokens.weight"], self._target["lm_head.weight"]
        blocks = draft_blocks(tokens, passed.taps, anchors, own, self._draft_config, embed, head)
        place = anchors[..., None] + torch.arange(_DRAFTS + 1, device=tokens.device)
        text = tokens[:, None].expand(-1, anchors.shape[1], -1).gather(-1, place)
        inside = is_told[:, None].expand(-1, anchors.shape[1], -1).gather(-1, place)[..., 1:].float()
        scores, label = pair_scores(blocks, text[..., :-1], own), text[..., 1:]
        weight = inside * _SLOT_DECAY ** torch.arange(_DRAFTS, device=tokens.device)
        both = sum(
            functional.cross_entropy(x.flatten(0, 2), label.flatten(), reduction="none") * share
            for x, share in ((scores, 0.7), (blocks.logits, 0.3))
        )
        right = (scores.argmax(-1) == label) * inside
        length = 1 + right.cumprod(-1).sum(-1).mean()
        assert isinstance(both, Tensor)
        return (both * weight.flatten()).sum() / weight.sum().clamp(min=1.0), length


def _shifted(tokens: Tensor, by: int, length: int) -> Tensor:
    """Tokens [B, length] from place `by` on, the last one again behind the end."""
    place = (torch.arange(length, device=tokens.device) + by).clamp(max=tokens.shape[1] - 1)
    return tokens[:, place]


def _anchors(is_told: Tensor, count: int, drafts: int, seed: int) -> Tensor:
    """Positions [B, count] of told tokens, with room for a block behind them."""
    draw = torch.Generator(is_told.device).manual_seed(seed)
    weight = is_told[:, : is_told.shape[1] - drafts].float() + 1e-6
    weight[:, 0] = 0
    return torch.multinomial(weight, count, replacement=True, generator=draw)
