"""The ops that layers call, bound once from the configuration."""

from dataclasses import dataclass, fields

from stack.config import KernelConfig
from stack.core.errors import ConfigError
from stack.kernels import BoundOp
from stack.kernels.catalog import OPS
from stack.kernels.moe.tables import TileTable

_TILED = ("by_rows", "triton_grouped", "triton_beside")
"""Implementations of `moe` that take tuned tiles."""
_KV_TILED = ("triton_partial", "tilelang_partial")
"""Implementations of `sparse_mla` whose tile of keys is a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """One bound implementation of every op of the target model; a field has the op's name."""

    linear: BoundOp
    linear_fp8: BoundOp
    quantize_rows: BoundOp
    rms_norm: BoundOp
    mhc_boundary: BoundOp
    kda_conv: BoundOp
    kda_chunk: BoundOp
    kda_decode: BoundOp
    kda_verify: BoundOp
    gated_norm: BoundOp
    latent_write: BoundOp
    index_write: BoundOp
    index_select: BoundOp
    sparse_mla: BoundOp
    router: BoundOp
    moe: BoundOp
    swiglu: BoundOp
    swiglu_quant: BoundOp

    @property
    def impls(self) -> dict[str, str]:
        """Op -> the implementation that was bound, for the records."""
        return {field.name: getattr(self, field.name).impl for field in fields(self)}


def bind_ops(kernels: KernelConfig, device: str, *, moe_tiles: TileTable | None = None) -> Ops:
    """Bind every op for `device` ("cpu" or "cuda"). Raises MissingImplementationError with the reason, and ConfigError
    for tuned tiles beside an implementation that has none."""
    options: dict[str, dict[str, TileTable | int]] = {"moe": {"tiles": moe_tiles}} if moe_tiles else {}
    if kernels.sparse_mla in _KV_TILED:  # by name alone: the other implementations have a tile of their own
        options["sparse_mla"] = {"kv_tile": kernels.kv_tile}
    bound = {
        field.name: OPS[field.name].bind(getattr(kernels, field.name), device, **options.get(field.name, {}))
        for field in fields(Ops)
    }
    if moe_tiles and bound["moe"].impl not in _TILED:
        raise ConfigError(
            f"kernels.moe_table holds tiles of {', '.join(_TILED)}, and kernels.moe runs {bound['moe'].impl}; "
            "leave kernels.moe_table empty"
        )
    return Ops(**bound)
