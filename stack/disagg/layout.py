"""What two instances must agree on before one writes into the other's memory.

Everything that changes the meaning of a byte in a page or a slot is a named value here. The digest travels in
`GET /disagg/endpoint`, the values in the introduction, so that a refusal can name both.
"""

import dataclasses
import hashlib

import msgspec

from stack.config import EngineConfig
from stack.core.geometry import ModelGeometry
from stack.transfer import Pools

Layout = dict[str, str | int]


def layout_of(config: EngineConfig, geometry: ModelGeometry, pools: Pools) -> Layout:
    """The values of one instance. Weights count: a cache of one model is noise to another."""
    cache, model = config.cache, config.model
    return {
        "model": _digest(dataclasses.asdict(geometry)),
        "weights": f"random {model.random_seed}" if model.weights == "random" else "checkpoint",
        "num_layers": geometry.num_layers if model.num_layers is None else model.num_layers,
        "compute_dtype": model.compute_dtype,
        "page_size": cache.page_size,
        "page_bytes": pools.pages.item_bytes,
        "slot_bytes": pools.slots.item_bytes,
        "kv_dtype": cache.kv_dtype,
        "index_dtype": cache.index_dtype,
        "state_dtype": cache.state_dtype,
        "conv_dtype": cache.conv_dtype,
        "drafter": config.speculation.method,
        "verify_width": config.speculation.width,
        "draft_kv": cache.draft_kv if config.speculation.method == "dflash2" else "none",
    }


def layout_hash(layout: Layout) -> str:
    """Sixteen hex digits that are equal only for equal layouts."""
    return _digest(layout)


def differences(prefill: Layout, decode: Layout) -> str:
    """Empty for equal layouts, else what differs, with both values."""
    names = sorted(prefill.keys() | decode.keys())
    unequal = [
        f"{name}: prefill {prefill.get(name, 'unset')}, decode {decode.get(name, 'unset')}"
        for name in names
        if prefill.get(name) != decode.get(name)
    ]
    return "; ".join(unequal)


def _digest(value: object) -> str:
    canonical = msgspec.json.encode(value, order="sorted")
    return hashlib.sha256(canonical).hexdigest()[:16]
