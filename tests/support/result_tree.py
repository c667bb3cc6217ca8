"""Writes small trees of results by the formats of a run, with numbers of the caller's choosing.

The shapes are those that sessions leave: plan, status, metrics, client, provenance and the engine's step log. No server
runs; what is made up here is only ever made up in tests.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REAL = {
    "weights": "checkpoint",
    "acceptance": "natural",
    "admission": "transfer",
    "lengths": "published",
    "scale": "full",
}
TINY = {**REAL, "weights": "random", "acceptance": "forced", "lengths": "scaled", "scale": "cpu-tiny"}


class ResultTree:
    """`folder` is a testbed's; sessions are added one by one."""

    def __init__(self, root: Path, testbed: str, labels: dict[str, str]) -> None:
        self.folder = root / "results" / testbed
        self.labels = labels
        self._testbed = testbed

    def add(
        self,
        cell: str,
        index: int = 0,
        *,
        metrics: dict[str, float | None] | None = None,
        verdict: str = "VALID",
        reasons: tuple[str, ...] = (),
        status: dict[str, Any] | None = None,
        prefix: str = "none",
        running_limit: int = 56,
        phases_ms: dict[str, float] | None = None,
        cycle_ms: float = 100.0,
    ) -> Path:
        """One session of `suite/row/workload`. `phases_ms` makes its decode steps verify steps."""
        suite, row, workload = cell.split("/")
        folder = self.folder / suite / row / workload / f"s{index}"
        folder.mkdir(parents=True)
        names = {"suite": suite, "row": row, "workload": workload, "session": index}
        body = {"cell": {**names, "testbed": self._testbed, "engine": "stack"}}
        _write(folder / "plan.json", body | self._plan(prefix))
        outcome = {"status": "ok", "reason": "", "kind": None, "log_tail": {}} | (status or {})
        facts = {"duration_s": 12.5, "started_unix_s": 1_795_980_000.0 + index, "measured_code": "c0de", **outcome}
        _write(folder / "status.json", body | facts)
        _write(
            folder / "client.json", {"passes": [{"t0_monotonic_s": 10.0, "t0_unix_s": 1e9 + 10, "duration_s": 50.0}]}
        )
        _write(folder / "provenance.json", _PROVENANCE)
        if metrics is not None:
            rules = [{"rule": "errors", "verdict": "pass", "value": 0, "limit": 0, "source": "client", "reason": ""}]
            validity = {"verdict": verdict, "reasons": list(reasons), "rules": rules, "warnings": []}
            slo = [{"slo": "ttft mean < 6 s", "value": metrics.get("ttft_mean_s"), "met": True}]
            measured = {"validity": validity, "metrics": metrics, "passes": [{}, {}], "slo": slo}
            _write(folder / "metrics.json", body | measured)
        lines = list(_steps(prefix, running_limit, phases_ms, cycle_ms))
        (folder / "engine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def _plan(self, prefix: str) -> dict[str, Any]:
        source = {"kind": "shared_prefix", "input_len": 512, "output_len": 32, "shared_ratio": 0.999}
        halves = [("p0", "prefill", "hybrid_radix"), ("d0", "decode", prefix)]
        return {
            "schema": "plan/1",
            "labels": self.labels,
            "question": "What does it bring & cost?",
            "expect": {"metric": "output_tok_s", "direction": "higher"},
            "left_out": {"kv_tile": "tiles are a GPU kernel's"},
            "client": {"workload": {"source": source, "load": {"kind": "closed", "concurrency": 4}}},
            "processes": [
                {"name": name, "role": role, "gpus": [], "files": {f"{name}.json": _config(kind)}}
                for name, role, kind in halves
            ]
            + [{"name": "router", "role": "router", "gpus": [], "files": {}}],
        }


def _steps(
    prefix: str, running_limit: int, phases_ms: dict[str, float] | None, cycle_ms: float
) -> Iterator[dict[str, Any]]:
    """Forty decode steps inside the window: three or four requests of nine pages, eight of them shared if at all."""
    for step in range(40):
        running = 3 + step % 2
        pages = 7 + 2 * running if prefix == "kv_radix" else 9 * running
        line = {
            "instance": "d0", "t_s": 11.0 + step * cycle_ms / 1000, "step": step, "rows": running, "tokens": running,
            "kind": "verify" if phases_ms else "decode", "running": running, "waiting": 0, "inflight": 0,
            "running_limit": running_limit, "pages_used": pages, "pages_total": 100, "page_bytes": 2**20,
            "slots_used": running, "slots_total": 20, "slot_bytes": 2**19, "device_s": 0.05,
        }  # fmt: skip
        yield line | {f"{name}_s": length / 1000 for name, length in (phases_ms or {}).items()}
    yield {"instance": "p0", "t_s": 11.0, "step": 0, "kind": "prefill", "running": 0, "running_limit": 70, "rows": 1,
           "pages_used": 8, "pages_total": 80, "slots_used": 1, "slots_total": 90}  # fmt: skip


def _config(prefix: str) -> dict[str, Any]:
    kernels = dict.fromkeys(("moe", "sparse_mla", "kda_chunk", "kda_decode", "kda_verify"), "auto")
    return {
        "cache": {
            "page_size": 64,
            "prefix": prefix,
            "kv_dtype": "bfloat16",
            "state_dtype": "float32",
            "draft_kv": "ring",
            "budget_bytes": 2**26,
            "mem_fraction": 0.85,
            "slots_per_request": 1,
        },
        "kernels": kernels,
        "graphs": {"decode": False, "decode_batch_sizes": [1, 2], "prefill_token_buckets": []},
        "scheduler": {"chunk_tokens": 64, "max_prefill_tokens": 128, "max_running": None},
        "speculation": {"method": "off", "num_steps": 7, "verify_width": 8, "commit": "replay"},
        "disagg": {"backend": "ucx"},
    }


_PROVENANCE = {
    "code": {"commit": "0123456789abcdef", "diff_sha256": None, "diff_files": []},
    "commands": {"d0": {"argv": ["{python}", "-m", "stack.server", "{dir}/d0.json", "--set", "a b=1"], "env": {}}},
    "machine": {"cpu": "a processor", "num_cpus": 2, "memory_gib": 23.5, "load_average": [0.1, 0.1, 0.1]},
    "packages": {"torch": "2.13.0", "nixl": "1.5.0", "triton": None},
    "gpus": [],
    "instances": {
        "p0": {"impls": {"moe": "torch_grouped", "sample": "reference"}},
        "d0": {
            "plan": {
                "max_running": 56,
                "budget_bytes": 2**26,
                "bytes.target_KV": 2**25,
                "bytes.recurrent_states": 2**24,
                "bytes.convolution_windows": 3 * 2**18,
                "bytes.index_tails": 2**18,
                "bytes.index_workspace": 2**18,
                "bytes.draft_KV": 2**21,
                "bytes.draft_rings": 2**20,
                "bytes.idle_slots": 2**18,
                "bytes.empty_index_rows": 3 * 2**18,
                "bytes.weights": 2**20,
                "bytes.replay_ring": 15 * 2**18,
            },
            "impls": {"moe": "reference", "sample": "reference"},
        },
    },
}


def _write(path: Path, body: dict[str, Any]) -> None:
    path.write_text(json.dumps(body))
