"""Whole-model logits on a GPU against the CPU's FP32 arithmetic, for every choice of kernels and formats of a row.

Two models: `tiny` where every expert and every token takes part, so that rounding cannot turn a choice; and the first
four layers of the quarter model at their real widths, with weights drawn once for all. The yardstick is the CPU in BF16
arithmetic with the same stored formats: a GPU may be as far from FP32 as that, times a factor. Attention on raw FP8
rows also rounds queries and probabilities to FP8, which the CPU does not; its rows have a bound of their own.
"""

import dataclasses
import os
from functools import cache

import pytest
import torch
from torch import Tensor

from stack.config import EngineConfig, with_settings
from stack.kernels.moe.tables import load_table
from stack.kernels.quantized import Fp8Weight
from stack.layers import bind_ops
from stack.layers.weights import Experts
from stack.models import TargetModel, model_geometry
from stack.models.checkpoint import CheckpointWeights
from stack.models.random_weights import RandomWeights
from stack.models.tiny import write_tiny
from tests.support.checkpoints import WITHOUT_CHOICES, variant
from tests.support.target_session import TargetSession
from workflows.catalog import ROOT, load_catalog
from workflows.resolution import resolve

DEVICE = "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PROMPT, CHUNK, WIDTH = 300, 200, 8
FACTOR = 2.0
"""How many times the yardstick's noise the median row may have."""
WORST = 2.0
"""How many times the median row's bound the worst row may have, where nothing is chosen."""
RAW_FP8 = 0.1
"""Noise of the median row, over the logits' root mean square, with attention on raw FP8 rows."""
FORMATS = ("cache.kv_dtype", "cache.state_dtype")
LAYOUT = "cache.index_layout"
HALVES = {"prefill": ("prefill",), "decode": ("decode",), "drafters": ("decode",), "integrated": ("prefill", "decode")}


def _choices() -> dict[str, dict[str, object]]:
    """Rows that can be measured on one or two H200s, by what they choose: name of the first one -> its settings."""
    catalog, found = load_catalog(), {}
    for name, entry in catalog.rows.items():
        resolution = resolve(catalog, entry, "h200x2" if entry.suite_id == "integrated" else "h200x1")
        for half in HALVES.get(entry.suite_id, ()) if resolution.status == "runnable" else ():
            given = resolution.settings[half]
            chosen = {
                path: value
                for path, value in given.items()
                if path.startswith("kernels.") or path in (*FORMATS, LAYOUT)
            }
            if chosen.get("kernels.sparse_mla") != "triton_partial":
                chosen.pop("kernels.kv_tile", None)  # nobody else reads it
            if half == "decode" and "speculation.verify_width" in given:
                chosen["speculation.verify_width"] = given["speculation.verify_width"]
            if chosen not in found.values():
                found[f"{name}:{half}"] = chosen
    return found


CHOICES = _choices()
EQUAL = (
    ("kda_conv", "cuda_unfused", "cuda_fused"),
    ("mhc_boundary", "cuda_unfused", "cuda_fused"),
    ("swiglu_quant", "unfused", "triton_fused"),
)
"""Implementations whose contract says that they give the same bits."""


class Drawn:
    """One set of weights for models on both devices; `source` draws or reads each once, in BF16."""

    def __init__(self, source) -> None:
        self._source, self._kept = source, {}

    def get(self, kind: str, *args, **options):
        key = (kind, *map(str, args), *options.items())
        if key not in self._kept:
            self._kept[key] = getattr(self._source, kind)(*args, **options)
        return self._kept[key]


class Given:
    """A `Drawn`, copied to a device; BF16 becomes the compute dtype."""

    def __init__(self, drawn: Drawn, device: str, dtype: torch.dtype) -> None:
        self.dtype, self._drawn, self._device = dtype, drawn, device

    def linear(self, *args, **options):
        return self._copied(self._drawn.get("linear", *args, **options))

    def experts(self, *args):
        return self._copied(self._drawn.get("experts", *args))

    def tensor(self, *args, **options):
        return self._copied(self._drawn.get("tensor", *args, **options))

    def _copied(self, value):
        if isinstance(value, Tensor):
            dtype = self.dtype if value.dtype == torch.bfloat16 else value.dtype
            return value.to(self._device, dtype, copy=True)
        assert isinstance(value, Fp8Weight | Experts)
        parts = {part.name: self._copied(getattr(value, part.name)) for part in dataclasses.fields(value)}
        return dataclasses.replace(value, **parts)


class Case:
    """A model's folder, its weights, and a text: `PROMPT` tokens, then `WIDTH` more."""

    def __init__(self, path, drawn: Drawn, num_layers: int | None, *, has_table: bool) -> None:
        self._path, self._drawn, self._num_layers, self._has_table = path, drawn, num_layers, has_table
        self._wanted, self._yardstick = cache(self._of_the_cpu), cache(self._of_the_cpu_in_bf16)
        draw = torch.Generator().manual_seed(11)
        self._tokens = torch.randint(4, 1000, (PROMPT + WIDTH,), generator=draw).tolist()

    def on_the_gpu(self, chosen: dict[str, object]) -> Tensor:
        """Logits of every row: the prompt in two chunks, then verified rows, or two decoded ones without a drafter."""
        given = {path: value for path, value in chosen.items() if self._has_table or path != "kernels.moe_table"}
        return self._logits(DEVICE, "bfloat16", given).float().cpu()

    def noise(self, chosen: dict[str, object]) -> tuple[Tensor, float]:
        """Of each row, the root mean square of its distance from FP32 over that of the logits; and the yardstick."""
        got, want = self.on_the_gpu(chosen), self._wanted(tuple(chosen[path] for path in FORMATS))
        return _noise(got, want), self._yardstick()

    def _of_the_cpu(self, formats: tuple[object, ...], dtype: str = "float32") -> Tensor:
        threads = torch.get_num_threads()
        torch.set_num_threads(os.cpu_count() or 1)
        try:
            verified = {**dict(zip(FORMATS, formats, strict=True)), "speculation.verify_width": WIDTH}
            return self._logits("cpu", dtype, verified)
        finally:
            torch.set_num_threads(threads)

    def _of_the_cpu_in_bf16(self) -> float:
        """The median row's noise; it is the same in all stored formats, since FP8 weights make most of it."""
        formats = ("bfloat16", "float32")
        return float(_noise(self._of_the_cpu(formats, "bfloat16"), self._wanted(formats)).median())

    def _logits(self, device: str, dtype: str, chosen: dict[str, object]) -> Tensor:
        width = chosen.get("speculation.verify_width", 1)
        drafts = {"speculation.method": "mtp", "speculation.num_steps": width - 1} if width > 1 else {}
        config = with_settings(
            EngineConfig(),
            {
                "model.path": str(self._path), "model.device": device, "model.compute_dtype": dtype,
                "model.num_layers": self._num_layers, "cache.page_size": 256, **chosen, **drafts,
            },
        )  # fmt: skip
        session = TargetSession(config, model=self._model(config), max_tokens=512)
        with torch.no_grad():
            text, rest = self._tokens[:PROMPT], self._tokens[PROMPT:]
            parts = [
                session.logits(session.prefill({0: text[:CHUNK]})),
                session.logits(session.prefill({0: text[CHUNK:]})),
            ]
            if width > 1:
                parts.append(session.logits(session.verify({0: rest[:width]})))
            else:
                parts += [session.logits(session.decode({0: token})) for token in rest[:2]]
        return torch.cat(parts)

    def _model(self, config: EngineConfig) -> TargetModel:
        table = load_table(config.kernels.moe_table) if config.kernels.moe_table else None
        ops = bind_ops(config.kernels, config.model.device, moe_tiles=table)
        dtype = getattr(torch, config.model.compute_dtype)
        with torch.no_grad():
            return TargetModel(model_geometry(config), ops, Given(self._drawn, config.model.device, dtype))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Case:
    folder = tmp_path_factory.mktemp("logits")
    write_tiny(folder / "source", fp8=True)
    path = variant(folder / "source", folder / "free", **WITHOUT_CHOICES)
    return Case(path, Drawn(CheckpointWeights(path, torch.bfloat16, torch.device(DEVICE))), None, has_table=False)


@pytest.fixture(scope="module")
def quarter() -> Case:
    weights = RandomWeights(0, torch.bfloat16, torch.device(DEVICE), is_fp8=True)
    return Case(ROOT / "workloads/checkpoints/quarter", Drawn(weights), 4, has_table=True)


def _noise(got: Tensor, want: Tensor) -> Tensor:
    want = want[: len(got)]
    return (got - want).square().mean(1).sqrt() / want.square().mean().sqrt()


def _judge(name: str, chosen: dict[str, object], noise: tuple[Tensor, float]) -> float:
    """The worst row's noise over the median row's bound."""
    rows, yardstick = noise
    reads_raw = chosen["cache.kv_dtype"] == "fp8_e4m3" and "kernels.sparse_mla" not in chosen
    bound = max(FACTOR * yardstick, RAW_FP8 if reads_raw else 0.0)
    middle, worst = float(rows.median()), float(rows.max())
    print(f"{name}: median row {middle:.4f}, worst {worst:.4f}; CPU in BF16 {yardstick:.4f}, bound {bound:.4f}")
    assert middle <= bound
    return worst / bound


@pytest.mark.parametrize("name", CHOICES)
def test_tiny_gives_the_cpu_s_logits_with_every_row_s_kernels(tiny, name):
    assert _judge(name, CHOICES[name], tiny.noise(CHOICES[name])) <= WORST


@pytest.mark.parametrize("name", CHOICES)
def test_four_layers_at_real_widths_give_the_cpu_s_logits_with_every_row_s_kernels(quarter, name):
    """A choice of experts that rounding turned changes a row as a whole, so no bound holds for the worst one."""
    _judge(name, CHOICES[name], quarter.noise(CHOICES[name]))


@pytest.mark.parametrize(("op", "first", "second"), EQUAL)
@pytest.mark.parametrize("model", ["tiny", "quarter"])
def test_a_fused_kernel_gives_its_chain_s_bits_in_the_whole_model(request, model, op, first, second):
    case, base = request.getfixturevalue(model), {"kernels.moe": "triton_grouped"}
    assert torch.equal(*(case.on_the_gpu({**base, f"kernels.{op}": impl}) for impl in (first, second)))
