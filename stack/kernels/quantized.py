"""The two FP8 layouts that every quantiser emits and every FP8 GEMM takes. An implicit conversion raises.

T rows, K inner width, N output width, G = ceil(K / 128) groups.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROUP = 128
"""Width of a scale group of activations, and both sides of a scale block of weights."""

FP8_MAX = 448.0
"""Largest finite E4M3 value."""


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Activations in E4M3 with one FP32 scale per row and 128 columns: value = code * scale.

    `codes_TK` is row-major. `scale_TG` has shape [T, G] and is stored MN-major: stride 1 over rows, stride
    `ceil(T / 4) * 4` over groups, which is what TMA loads want.
    """

    codes_TK: "Tensor"
    scale_TG: "Tensor"


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight [N, K] in E4M3 with an FP32 scale [N/128, K/128] per 128 x 128 block: value = code * scale."""

    codes_NK: "Tensor"
    scale_NK: "Tensor"


def empty_scales(num_rows: int, num_groups: int, device: "torch.device | str") -> "Tensor":
    """Uninitialised scales [T, G] in the MN-major layout that `QuantizedRows` promises."""
    import torch

    return torch.empty(num_groups, -(-num_rows // 4) * 4, dtype=torch.float32, device=device).t()[:num_rows]
