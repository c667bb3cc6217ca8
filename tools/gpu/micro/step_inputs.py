"""Inputs of what a decode step fuses across two ops: a shared expert beside the routed, a boundary that quantises."""

from dataclasses import dataclass
from types import SimpleNamespace

from torch import Tensor

from stack.kernels.catalog import OPS
from stack.kernels.quantized import QuantizedRows
from tools.gpu.micro import inputs
from tools.gpu.micro.inputs import BF16, Call, fp8_weight


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """A shared expert that runs by itself with the op's own first choices on the device of its rows."""

    weights: SimpleNamespace

    def __call__(self, x_TC: Tensor, rows: QuantizedRows | None = None) -> Tensor:
        """Its outputs."""
        quantise, product, activation = (
            OPS[name].bind("auto" if x_TC.is_cuda else "reference", x_TC.device.type)
            for name in ("quantize_rows", "linear_fp8", "swiglu_quant")
        )
        inner = product(quantise(x_TC) if rows is None else rows, self.weights.gate_up, out_dtype=BF16)
        y_TC: Tensor = product(activation(inner, limit=10.0), self.weights.down, out_dtype=BF16)
        return y_TC


def moe_with_shared(
    device: str, rows: int, experts: int, top_k: int, width: int, inner: int, shared: int, quantised: bool
) -> Call:
    """The same beside a shared expert of inner width `shared`; `quantised`: x is given in both forms."""
    call = inputs.moe(device, rows, experts, top_k, width, inner, None)
    matrices = SimpleNamespace(
        gate_up=fp8_weight(2 * shared, width, device=device), down=fp8_weight(width, shared, device=device)
    )
    form = OPS["quantize_rows"].bind("auto", device)(call.args[0]) if quantised else None
    return Call(call.args, call.kwargs | {"shared": SharedExpert(matrices), "rows": form})


def mhc_boundary_quant(device: str, rows: int, width: int, first: bool = False) -> Call:
    """A boundary whose result is wanted quantised, too."""
    call = inputs.mhc_boundary(device, rows, width, first, bf16_fn=True)
    return Call(call.args, call.kwargs | {"quantize_rows": None}, call.outputs, "mhc_boundary_quant")
