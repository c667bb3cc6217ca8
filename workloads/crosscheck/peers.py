"""Other load generators: how to ask each for our workload, and how to read its result file.

A peer is run as a command, as its own users run it. What it cannot express (a source, a load) is an error with the
reason; nothing is approximated.
"""

import dataclasses
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads.sources.shared_prefix import shared_len
from workloads.spec import ClosedLoad, RandomSource, SharedPrefixSource, SpecError, Workload


class NotInstalledError(RuntimeError):
    """The peer is not on this machine."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PeerNumbers:
    """What every tool can say of a run."""

    num_requests: int
    output_tok_s: float
    ttft_mean_s: float | None
    tpot_mean_ms: float | None
    duration_s: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a peer is told beyond the workload."""

    url: str
    tokenizer: str
    out: Path
    launcher: Path | None = None
    """A script to run instead of the peer's own entry."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One load generator."""

    name: str
    command: Callable[[Workload, Ask], list[str]]
    read: Callable[[Path], PeerNumbers]


def _sglang_command(workload: Workload, ask: Ask) -> list[str]:
    if ask.launcher is None and importlib.util.find_spec("sglang") is None:
        raise NotInstalledError("sglang is not installed; pip install sglang, or give a launcher")
    start = [str(ask.launcher)] if ask.launcher else ["-m", "sglang.bench_serving"]
    load = _closed(workload)
    return [
        sys.executable, *start, "--backend", "sglang", "--base-url", ask.url, "--model", ask.tokenizer,
        "--tokenizer", ask.tokenizer, *_sglang_dataset(workload), "--tokenize-prompt",
        "--max-concurrency", str(load.concurrency), "--seed", str(workload.seed("peer") % 2**31),
        "--warmup-requests", str(min(load.concurrency, workload.num_warmup)), "--flush-cache", "--disable-tqdm",
        "--output-file", str(ask.out), "--output-details",
    ]  # fmt: skip


def _sglang_dataset(workload: Workload) -> list[str]:
    source, count = workload.source, workload.num_measured
    if isinstance(source, RandomSource):
        return [
            "--dataset-name", "random-ids", "--random-input-len", str(source.input_len), "--random-output-len",
            str(source.output_len), "--random-range-ratio", "1.0", "--num-prompts", str(count),
        ]  # fmt: skip
    if isinstance(source, SharedPrefixSource):
        shared = shared_len(source.input_len, source.shared_ratio)
        return [
            "--dataset-name", "generated-shared-prefix", "--gsp-num-groups", str(source.groups),
            "--gsp-prompts-per-group", str(-(-count // source.groups)), "--gsp-system-prompt-len", str(shared),
            "--gsp-question-len", str(source.input_len - shared), "--gsp-output-len", str(source.output_len),
        ]  # fmt: skip
    raise SpecError(f"sglang.bench_serving has no equal of source {source.kind}")


def _read_sglang(path: Path) -> PeerNumbers:
    result = json.loads(path.read_text().splitlines()[-1])
    bad = [length for length in result["output_lens"] if length <= 0]
    if bad or any(result["errors"]):
        raise SpecError(f"sglang.bench_serving saw {len(bad)} answers without tokens or errors: no comparison")
    return PeerNumbers(
        num_requests=result["completed"],
        output_tok_s=result["output_throughput"],
        ttft_mean_s=result["mean_ttft_ms"] / 1000,
        tpot_mean_ms=result["mean_tpot_ms"],
        duration_s=result["duration"],
    )


def _vllm_command(workload: Workload, ask: Ask) -> list[str]:
    program = str(ask.launcher) if ask.launcher else shutil.which("vllm")
    if program is None:
        raise NotInstalledError("vllm is not installed; pip install vllm")
    source, load = workload.source, _closed(workload)
    if not isinstance(source, RandomSource):
        raise SpecError(f"vllm bench serve is used with source random, not {source.kind}")
    return [
        program, "bench", "serve", "--backend", "openai", "--base-url", ask.url, "--model", workload.model,
        "--tokenizer", ask.tokenizer, "--dataset-name", "random", "--random-input-len", str(source.input_len),
        "--random-output-len", str(source.output_len), "--num-prompts", str(workload.num_measured),
        "--max-concurrency", str(load.concurrency), "--ignore-eos", "--seed", str(workload.seed("peer") % 2**31),
        "--save-result", "--result-dir", str(ask.out.parent), "--result-filename", ask.out.name,
    ]  # fmt: skip


def _read_vllm(path: Path) -> PeerNumbers:
    result = json.loads(path.read_text())
    return PeerNumbers(
        num_requests=result["completed"],
        output_tok_s=result["output_throughput"],
        ttft_mean_s=result["mean_ttft_ms"] / 1000,
        tpot_mean_ms=result["mean_tpot_ms"],
        duration_s=result["duration"],
    )


def _aiperf_command(workload: Workload, ask: Ask) -> list[str]:
    program = str(ask.launcher) if ask.launcher else shutil.which("aiperf")
    if program is None:
        raise NotInstalledError("aiperf is not installed; pip install aiperf")
    source, load = workload.source, _closed(workload)
    if not isinstance(source, RandomSource):
        raise SpecError(f"aiperf is used with source random, not {source.kind}")
    return [
        program, "profile", "--model", workload.model, "--url", ask.url, "--endpoint-type", "completions",
        "--streaming", "--tokenizer", ask.tokenizer, "--synthetic-input-tokens-mean", str(source.input_len),
        "--synthetic-input-tokens-stddev", "0", "--output-tokens-mean", str(source.output_len),
        "--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{source.output_len}",
        "--concurrency", str(load.concurrency), "--request-count", str(workload.num_measured),
        "--random-seed", str(workload.seed("peer") % 2**31), "--artifact-dir", str(ask.out.parent), "--ui", "none",
    ]  # fmt: skip


def _read_aiperf(path: Path) -> PeerNumbers:
    result: dict[str, Any] = json.loads((path.parent / "profile_export_aiperf.json").read_text())

    def average(name: str) -> float | None:
        return result[name]["avg"] if name in result else None

    ttft, tokens = average("time_to_first_token"), average("output_token_throughput")
    if tokens is None:
        raise SpecError("aiperf gave no output_token_throughput: no comparison")
    return PeerNumbers(
        num_requests=int(average("request_count") or 0),
        output_tok_s=tokens,
        ttft_mean_s=None if ttft is None else ttft / 1000,
        tpot_mean_ms=average("inter_token_latency"),
        duration_s=average("benchmark_duration"),
    )


def _closed(workload: Workload) -> ClosedLoad:
    if not isinstance(workload.load, ClosedLoad):
        raise SpecError("cross-checks use load closed: the tools draw open-loop arrivals differently")
    return workload.load


PEERS: dict[str, Peer] = {
    "sglang": Peer(name="sglang", command=_sglang_command, read=_read_sglang),
    "vllm": Peer(name="vllm", command=_vllm_command, read=_read_vllm),
    "aiperf": Peer(name="aiperf", command=_aiperf_command, read=_read_aiperf),
}
