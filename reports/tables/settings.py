"""How both halves were set, baseline and everything on: the published tables beside what our instances were given."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from reports.claims import Cell
from reports.claims.claim import published_h200
from reports.engine_log import instance_views
from reports.material import WORKLOADS, Material
from reports.plans import Tree, instance_config
from reports.results import Session
from reports.tables.table import Table, show

_OURS: dict[str, tuple[str, Callable[[Tree], Any]]] = {
    "moe_runner": ("kernels.moe", lambda c: c["kernels"]["moe"]),
    "dsa_prefill_backend": ("kernels.sparse_mla", lambda c: c["kernels"]["sparse_mla"]),
    "dsa_decode_backend": ("kernels.sparse_mla", lambda c: c["kernels"]["sparse_mla"]),
    "kda_prefill_backend": ("kernels.kda_chunk", lambda c: c["kernels"]["kda_chunk"]),
    "kda_decode_backend": ("kernels.kda_decode", lambda c: c["kernels"]["kda_decode"]),
    "kda_verify_backend": ("kernels.kda_verify", lambda c: c["kernels"]["kda_verify"]),
    "kv_cache_dtype": ("cache.kv_dtype", lambda c: c["cache"]["kv_dtype"]),
    "state_dtype": ("cache.state_dtype", lambda c: c["cache"]["state_dtype"]),
    "draft_kv_dtype": ("cache.draft_kv", lambda c: c["cache"]["draft_kv"]),
    "speculative": ("speculation", lambda c: _speculation(c["speculation"])),
    "replayssm_spec": ("speculation.commit", lambda c: _commit(c["speculation"])),
    "decode_radix": ("cache.prefix", lambda c: c["cache"]["prefix"]),
    "mem_fraction_static": ("cache.budget_bytes or cache.mem_fraction", lambda c: _budget(c["cache"])),
    "chunked_prefill_size": ("scheduler.chunk_tokens", lambda c: c["scheduler"]["chunk_tokens"]),
    "max_prefill_tokens": ("scheduler.max_prefill_tokens", lambda c: c["scheduler"]["max_prefill_tokens"]),
    "prefill_cuda_graph": ("graphs.prefill_token_buckets", lambda c: _graphs(c["graphs"]["prefill_token_buckets"])),
    "decode_graph_max_bs": ("graphs.decode", lambda c: _decode_graphs(c["graphs"])),
}
"""Published setting -> our dotted setting, and how to read it. What is not here has no counterpart in our engine."""

_CAPTION = (
    "Published settings beside those that our instances were started with, whole trees in each session's plan.json. "
    "A dash under ours: the row has no session yet, or our engine has no such setting."
)


def prefill_settings(material: Material) -> Table:
    """The prefill half."""
    table = published_h200()["configuration_tables"]["prefill"]
    rows = ("prefill/baseline", "prefill/fp8_comm_fusion_scheduling")
    return _table(material, "prefill", (table["baseline"], table["optimized"]), rows)


def decode_settings(material: Material) -> Table:
    """The decode half."""
    table = published_h200()["configuration_tables"]["decode"]
    rows = ("decode/baseline", "decode/dflash2_tuned_moe_dsa_partial")
    return _table(material, "decode", (table["isolated_baseline"], table["optimized"]), rows)


def _table(material: Material, half: str, published: tuple[Tree, Tree], rows: tuple[str, str]) -> Table:
    sessions = [_latest(material, half, row) for row in rows]
    configs = [instance_config(session.plan, half) if session else None for session in sessions]
    lines = []
    for name in dict.fromkeys([*published[0], *published[1]]):
        knob, read = _OURS.get(name, ("", None))
        ours = [_value(read, config) if read and config else None for config in configs]
        if name in _OBSERVED:
            knob, observe = _OBSERVED[name]
            ours = [observe(session) if session else None for session in sessions]
        lines.append(
            {
                "setting": name,
                "our_setting": knob or "none",
                "published_baseline": _word(published[0].get(name)),
                "ours_baseline": _word(ours[0]),
                "published_optimized": _word(published[1].get(name)),
                "ours_optimized": _word(ours[1]),
            }
        )
    return Table(
        name=f"settings_{half}",
        title=f"Settings of {half} instances",
        caption=_CAPTION,
        frame=pd.DataFrame(lines),
        headers={
            "setting": "published setting",
            "our_setting": "our setting",
            "published_baseline": "published, baseline",
            "ours_baseline": "ours, baseline",
            "published_optimized": "published, optimized",
            "ours_optimized": "ours, optimized",
        },
    )


def _latest(material: Material, half: str, row: str) -> Session | None:
    suite, name = row.split("/")
    sessions = [s for workload in WORKLOADS[half] for s in material.results.of(Cell(suite, name, workload)) if s.plan]
    return sessions[-1] if sessions else None


def _concurrency(session: Session) -> Any:
    return session.plan["client"]["workload"]["load"].get("concurrency")


def _running_limit(session: Session) -> Any:
    limit = session.metrics.get("running_limit")
    return None if limit is None else round(limit)


def _state_slots(session: Session) -> Any:
    views = instance_views(session.steps()) if session.outcome == "ok" else []
    roles = {process["name"]: process["role"] for process in session.plan.get("processes", ())}
    return next((view.slots_total for view in views if roles.get(view.name) in ("decode", "single")), None)


_OBSERVED: dict[str, tuple[str, Callable[[Session], Any]]] = {
    "benchmark_concurrency": ("load.concurrency of the workload", _concurrency),
    "max_running_requests": ("planned from cache.budget_bytes", _running_limit),
    "state_slots": ("planned from cache.budget_bytes", _state_slots),
}


def _value(read: Callable[[Tree], Any], config: Tree) -> Any:
    """None where the configuration of an older session lacks the setting."""
    try:
        return read(config)
    except KeyError:
        return None


def _word(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {show(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else show(value)


def _speculation(tree: Tree) -> str:
    if tree["method"] == "off":
        return "off"
    return f"{tree['method']}, {tree['num_steps']} steps, verify {tree['verify_width']}"


def _commit(tree: Tree) -> str:
    return "not speculating" if tree["method"] == "off" else str(tree["commit"])


def _budget(tree: Tree) -> str:
    given = tree.get("budget_bytes")
    return f"{given / 2**20:,.0f} MiB" if given else f"{tree['mem_fraction']}"


def _graphs(buckets: list[int]) -> str:
    return f"up to {max(buckets)} tokens" if buckets else "disabled"


def _decode_graphs(tree: Tree) -> Any:
    return max(tree["decode_batch_sizes"]) if tree["decode"] else "off"
