"""From a commit of the published build to its mechanism, our switch and the row that shows it."""

from dataclasses import dataclass

import pandas as pd

from reports.claims import Cell
from reports.claims.claim import published_h200
from reports.material import WORKLOADS, Material
from reports.tables.table import Table


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What a published item does, and where it can be switched and seen here. `row` is `suite/row` or empty."""

    what: str
    switch: str
    row: str


MECHANISMS: dict[str, Mechanism] = {
    "kv_only_decode_radix": Mechanism(
        "decode keeps prefix pages and no states", "cache.prefix: kv_radix", "decode/plus_kv_only_decode_radix"
    ),
    "linear_eagle_mtp": Mechanism(
        "chained drafting over linear-attention layers", "speculation.method: mtp", "decode/fp8_kv_mtp516"
    ),
    "dflash2": Mechanism(
        "one drafted block a step by a second model", "speculation.method: dflash2", "drafters/dflash2_block8"
    ),
    "dsa_kv_tile_128": Mechanism(
        "attention tile of 128 keys instead of 32", "kernels.kv_tile: 128", "decode/triton_tile_128"
    ),
    "zero_padded_kda_gdn": Mechanism("padded rows of captured graphs leave states alone", "always on", ""),
    "cp_nixl_dflash2": Mechanism(
        "hand-off of context-parallel prefill with drafts", "disagg.backend: ucx", "integrated/optimized"
    ),
    "raw_fp8_q8_prefill": Mechanism(
        "sparse attention on raw FP8 rows", "kernels.sparse_mla: cuda_gather", "prefill/q8_attention_off"
    ),
    "kda_qkv_pack": Mechanism(
        "fused preparation of linear attention's inputs", "kernels.kda_conv", "prefill/deepgemm_kda_qkv_pack"
    ),
    "triton_act_quant_fusion": Mechanism(
        "activation and quantisation in one kernel", "kernels.swiglu_quant: triton_fused", "prefill/exec_prep_moe"
    ),
    "prefill_war_barrier": Mechanism(
        "the barrier before reusing a buffer comes later", "scheduler.war_barrier: deferred", "prefill/war_deferral"
    ),
    "cp_reorder_tail_padding": Mechanism("padding of the last context split", "none", ""),
    "kda_async_tp": Mechanism(
        "communication overlapped with projections", "part async_tp", "prefill/chunks32k_async_tp"
    ),
    "deepgemm_fp8_reuse_act_fusion": Mechanism(
        "quantised activations used again, fused in DeepGEMM's layout",
        "kernels.swiglu_quant: triton_fused",
        "prefill/fp8_comm_fusion_scheduling",
    ),
    "cp_moe_fp8_transport": Mechanism(
        "FP8 packets between context-parallel ranks", "part cp_moe_fp8_transport", "prefill/fp8_comm_fusion_scheduling"
    ),
    "fp8_kv_tilelang_cuda": Mechanism("latent rows in FP8", "cache.kv_dtype: fp8_e4m3", "decode/fp8_kv"),
    "cp_bcg_dflash2": Mechanism(
        "context-parallel prefill with captured graphs", "part context_parallel", "prefill/cp_bcg"
    ),
    "bf16_state_tracking": Mechanism(
        "recurrent states in BF16", "cache.state_dtype: bfloat16", "decode/plus_replayssm_bf16_state"
    ),
    "h200_moe_configs": Mechanism(
        "tuned tiles of the expert GEMMs", "kernels.moe_table", "decode/dflash2_tuned_moe_dsa_partial"
    ),
    "topk_v2": Mechanism("selection of the indexed keys", "kernels.index_select", ""),
    "nixl_prepared_states": Mechanism("states travel with the pages over NIXL", "disagg.backend: ucx", ""),
}


def mechanism_table(material: Material) -> Table:
    """Commits in their order, then what the published base build already had."""
    software = published_h200()["software"]["optimized"]
    custom = [(item["item"], item["commit"], [item["pr"]]) for item in published_h200()["software"]["custom_commits"]]
    base = [
        (item["item"], f"in base {software['base_commit']}", item["prs"])
        for item in published_h200()["software"]["already_in_base"]
    ]
    rows = []
    for item, commit, requests in [*custom, *base]:
        mechanism = MECHANISMS[item]
        rows.append(
            {
                "commit": commit,
                "item": item,
                "pull_request": ", ".join(f"#{number}" for number in requests if number),
                "mechanism": mechanism.what,
                "switch": mechanism.switch,
                "row": mechanism.row or "none of its own",
                "here": _state(material, mechanism.row),
            }
        )
    return Table(
        name="mechanisms",
        title="Commit, mechanism, switch, row",
        caption=f"Commits of the published build {software['sglang_build']} and what its base had already, each with "
        "the switch that turns the same mechanism on here and the row that shows it.",
        frame=pd.DataFrame(rows),
        headers={
            "commit": "commit",
            "pull_request": "pull request",
            "mechanism": "mechanism",
            "switch": "our switch",
            "row": "row",
            "here": "in these results",
        },
    )


def _state(material: Material, row: str) -> str:
    if not row:
        return "–"
    suite, name = row.split("/")
    workloads = WORKLOADS.get(suite, ("sp99_9",))
    sessions = [s for workload in workloads for s in material.results.of(Cell(suite, name, workload))]
    if not sessions:
        state, why = material.results.absence(Cell(suite, name, workloads[0]))
        return state if state == "not run" else f"{state}: {why}"
    left_out = sessions[-1].plan.get("left_out", {})
    valid = sum(session.outcome == "ok" for session in sessions)
    return f"{valid} of {len(sessions)} valid" + (f"; without {', '.join(sorted(left_out))}" if left_out else "")
