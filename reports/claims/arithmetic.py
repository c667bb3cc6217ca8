"""Claims that need no GPU: memory pools, packet bytes and tile counts, recomputed from the published geometry.

Bytes are per GPU of four (TP4). The report prints GB where its own arithmetic closes as GiB.
"""

import math
from collections.abc import Iterator

from reports.claims.claim import Claim, published_h200

_GIB = 2.0**30
HIDDEN = 4096
TOP_K = 8


def computed_claims() -> Iterator[Claim]:
    """Each published value beside the same value worked out from the model's shape."""
    yield from _pools()
    yield from _packets()
    yield from _tiles()
    yield from _prefill_ceiling()


def slot_bytes(state_element_bytes: int) -> int:
    """One request's recurrent states and convolution windows (BF16) on one of four GPUs."""
    g = _geometry()
    heads = g["kda_heads"] // g["tp"]
    state = g["kda_layers"] * heads * g["kda_head_dim"] ** 2 * state_element_bytes
    windows = g["kda_layers"] * (g["conv_kernel"] - 1) * 3 * heads * g["kda_head_dim"] * 2
    return int(state + windows)


def kv_bytes_per_token(latent_element_bytes: int, *, is_pooled: bool) -> int:
    """Latents and index rows of one token on every GPU; a pooled index keeps one FP8 row a group of tokens."""
    g = _geometry()
    index_row = g["indexer_head_dim"] + 4
    index = index_row // g["indexer_kpool"] if is_pooled else index_row
    return int(g["dsa_layers"] * (g["kv_lora_rank"] * latent_element_bytes + index))


def packet_parts() -> dict[str, int]:
    """Bytes of one token's packet between context-parallel ranks, by what they are."""
    return {
        "hidden row in FP8": HIDDEN,
        "FP32 scales, one for 128 channels": HIDDEN // 128 * 4,
        "expert ids": TOP_K * 4,
        "expert weights": TOP_K * 4,
    }


def _pools() -> Iterator[Claim]:
    budget = published_h200()["memory_budget"]
    base, final = budget["rows"]
    tokens = budget["arithmetic"]["token_slots"]
    baseline_slots, final_slots = base["state_slots"] + 1, final["state_slots"] + 1
    yield _claim(
        "pool/baseline_state", "state pool, baseline", base["state_and_conv_gb"], baseline_slots * slot_bytes(4) / _GIB
    )
    yield _claim(
        "pool/final_state", "state pool, final", final["state_and_conv_gb"], final_slots * slot_bytes(2) / _GIB
    )
    baseline_kv = tokens["baseline"] * kv_bytes_per_token(2, is_pooled=False) / _GIB
    final_kv = tokens["final_target"] * kv_bytes_per_token(1, is_pooled=True) / _GIB
    yield _claim("pool/baseline_kv", "target KV, baseline", base["target_kv_gb"], baseline_kv)
    yield _claim("pool/final_kv", "target KV, final", final["target_kv_gb"], final_kv)
    draft = tokens["final_draft"] * 5 * 2 * 2 * 128 * 2 / _GIB
    yield _claim("pool/final_draft", "draft KV, final", final["draft_kv_gb"], draft)
    occupancy = budget["arithmetic"]["occupancy_check"]
    used = occupancy["shared_prefix_tokens_page_aligned"] + occupancy["active"] * occupancy["private_tokens_each_about"]
    share = 100 * used / tokens["final_target"]
    yield _claim("pool/occupancy", "KV occupancy, final", final["median_kv_occupancy_pct"], share, unit="%", band=0.1)


def _packets() -> Iterator[Claim]:
    change = 100 * (sum(packet_parts().values()) / (2 * HIDDEN) - 1)
    published = published_h200()["communication_and_fusion"]["cp_moe_allgather"]["payload_change_pct"]
    yield _claim("packet/bytes", "bytes of an expert packet", published, change, unit="% of BF16", band=0.01)


def _tiles() -> Iterator[Claim]:
    tile = published_h200()["dsa_partial"]["tile"]
    width = math.ceil((2048 + 3) / 64) * 64
    yield _claim("tile/width", "index width", tile["index_width"], width, unit="columns", band=0.0)
    for name in ("old", "new"):
        count = math.ceil(width / tile[name])
        yield _claim(f"tile/{name}", f"iterations at tile {tile[name]}", tile[f"iterations_{name}"], count, "", 0.0)
    columns = math.ceil(width / tile["new"]) * tile["new"]
    yield _claim("tile/virtual", "virtual columns", tile["virtual_columns"], columns, unit="columns", band=0.0)


def _prefill_ceiling() -> Iterator[Claim]:
    report = published_h200()
    rate = report["headline"]["prefill"]["input_tok_s"]
    supply = 3 * rate / 65_536 * 1024
    at_zero = report["e2e_3p1d"]["rows"][0]["optimized"]["output_tok_s"]
    yield _claim(
        "ceiling/3p1d_sp0", "3P1D output at 0 % from prefill alone", at_zero, supply, unit="tokens/s", band=0.05
    )


def _claim(id_: str, what: str, published: float, computed: float, unit: str = "GiB", band: float = 0.005) -> Claim:
    return Claim(
        id=f"computed/{id_}",
        kind="computed",
        what=what,
        metric="computed",
        published=float(published),
        unit=unit,
        source="memory table" if id_.startswith("pool") else "report text",
        band=band,
        computed=float(computed),
    )


def _geometry() -> dict[str, int]:
    geometry: dict[str, int] = published_h200()["memory_budget"]["arithmetic"]["geometry"]
    return geometry
