"""Prints how far the target model is from transformers' `glm5_next` on the tiny checkpoint, as a Markdown table.

`python -m tools.equality_table` (needs the test extra). Differences are over the judge's root mean square.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from stack.config import EngineConfig
from stack.models import load_model
from stack.models.tiny import write_tiny
from tests.support.checkpoints import WITHOUT_CHOICES, dequantized, variant
from tests.support.glm_reference import GlmReference
from tests.support.target_session import TargetSession, engine_config

LENGTHS = (1, 3, 4, 5, 63, 64, 65, 257, 1025)
CHUNKS = (1, 2, 3, 5, 7, 17, 63, 64, 65, 100, 256, 1024)
_MOST_CHUNKS = 260
"""The longest prompt is not cut into ones, twos and threes: token by token covers that."""
BFLOAT16 = {"model.compute_dtype": "bfloat16", "cache.kv_dtype": "bfloat16", "cache.conv_dtype": "bfloat16"}


def main() -> None:
    """Write checkpoints into a temporary folder and print one row for each comparison."""
    torch.set_num_threads(1)
    print("| arithmetic | tokens | how | largest difference | rms difference | arg max equal |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for row in _rows(Path(folder)):
            print(row, flush=True)


def _rows(folder: Path) -> Iterator[str]:
    write_tiny(folder / "fp32", dtype="float32")
    yield from _exact(folder / "fp32")
    write_tiny(folder / "bf16")
    free = variant(folder / "bf16", folder / "bf16_free", **WITHOUT_CHOICES)
    yield from _loose("BF16, no discrete choices", engine_config(free, BFLOAT16), GlmReference(free))
    write_tiny(folder / "fp8", fp8=True)
    free = variant(folder / "fp8", folder / "fp8_free", **WITHOUT_CHOICES)
    judge = GlmReference(dequantized(free, folder / "fp8_plain"))
    yield from _loose("FP8 weights, FP32 otherwise, no discrete choices", engine_config(free), judge)
    yield from _loose("FP8 weights, BF16 otherwise, no discrete choices", engine_config(free, BFLOAT16), judge)


def _exact(folder: Path) -> Iterator[str]:
    config, judge = engine_config(folder), GlmReference(folder)
    model = load_model(config, "cpu")
    for length in LENGTHS:
        tokens = _prompt(length)
        want = judge.logits(tokens)
        ways: dict[str, Callable[[TargetSession, list[int]], Tensor]] = {
            "one pass": lambda s, t: _chunked(s, t, len(t))
        }
        ways |= {f"chunks of {c}": _chunker(c) for c in CHUNKS if c < length <= _MOST_CHUNKS * c}
        ways["token by token"] = _decoded
        for how, way in ways.items():
            got = way(TargetSession(config, model=model), tokens)
            yield _row("FP32", length, how, got, want)


def _loose(name: str, config: EngineConfig, judge: GlmReference) -> Iterator[str]:
    model = load_model(config, "cpu")
    for length in (65, 257):
        tokens = _prompt(length)
        want = judge.logits(tokens)
        yield _row(name, length, "one pass", _chunked(TargetSession(config, model=model), tokens, length), want)
        yield _row(name, length, "token by token", _decoded(TargetSession(config, model=model), tokens), want)


def _prompt(length: int) -> list[int]:
    return torch.randint(2, 1000, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def _chunker(size: int) -> Callable[[TargetSession, list[int]], Tensor]:
    return lambda session, tokens: _chunked(session, tokens, size)


def _chunked(session: TargetSession, tokens: list[int], size: int) -> Tensor:
    chunks = [tokens[begin : begin + size] for begin in range(0, len(tokens), size)]
    return torch.cat([session.logits(session.prefill({0: chunk})) for chunk in chunks])


def _decoded(session: TargetSession, tokens: list[int]) -> Tensor:
    first = session.logits(session.prefill({0: tokens[:1]}))
    return torch.cat([first, *(session.logits(session.decode({0: token})) for token in tokens[1:])])


def _row(name: str, length: int, how: str, got: Tensor, want: Tensor) -> str:
    difference = (got - want) / want.square().mean().sqrt()
    equal = (got.argmax(-1) == want.argmax(-1)).sum().item()
    largest, rms = difference.abs().max().item(), difference.square().mean().sqrt().item()
    return f"| {name} | {length} | {how} | {largest:.1e} | {rms:.1e} | {equal} of {length} |"


if __name__ == "__main__":
    main()
