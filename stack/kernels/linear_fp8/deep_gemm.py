"""DeepGEMM's block-scaled product for Hopper."""

import torch
from torch import Tensor

from stack.kernels.devices import hopper_only, package_missing
from stack.kernels.quantized import Fp8Weight, QuantizedRows


def missing(device: str) -> str | None:
    """Needs Hopper, and a DeepGEMM that loads."""
    return hopper_only(device) or package_missing("deep_gemm")


def linear_fp8(x: QuantizedRows, weight: Fp8Weight, *, out_dtype: torch.dtype) -> Tensor:
    """See the op's contract. `out_dtype` is bfloat16 or float32."""
    import deep_gemm

    rows, outputs = x.codes_TK.shape[0], weight.codes_NK.shape[0]
    y_TN = torch.empty((rows, outputs), dtype=torch.bfloat16, device=x.codes_TK.device)
    if rows:
        deep_gemm.fp8_gemm_nt((x.codes_TK, x.scale_TG), (weight.codes_NK, weight.scale_NK), y_TN)
    return y_TN if out_dtype == torch.bfloat16 else y_TN.to(out_dtype)
