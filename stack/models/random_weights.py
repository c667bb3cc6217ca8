"""Weights drawn on the device, straight in their final layouts, for measuring without a checkpoint.

Drawn so that routing does not collapse: linears N(0, 1 / sqrt(inputs)); FP8 codes N(0, 1) with block scale
1 / sqrt(inputs); norms 1; the routers' bias 0. Small uniform draws would round FP8 to zero and send every token to the
same experts. With such weights routing is close to uniform, which every result must say.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from stack.kernels.quantized import GROUP, Fp8Weight
from stack.layers.weights import Experts


class RandomWeights:
    """Every tensor that is asked for, drawn in the order of asking from one seed."""

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device, *, is_fp8: bool) -> None:
        self.dtype = dtype
        self._device = device
        self._is_fp8 = is_fp8
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def linear(self, name: str, rows: int, inputs: int, *, quantized: bool = False) -> Tensor | Fp8Weight:
        """A matrix [rows, inputs]; FP8 where the release quantises it and the config says that this checkpoint does."""
        if quantized and self._is_fp8:
            return self._fp8((rows, inputs))
        return self._normal((rows, inputs), self.dtype).mul_(inputs**-0.5)

    def experts(self, prefix: str, num_experts: int, inner: int, width: int) -> Experts:
        """Stacked experts [E, 2I, C] and [E, C, I]."""
        return Experts(self._stack(num_experts, 2 * inner, width), self._stack(num_experts, width, inner))

    def tensor(
        self, name: str, shape: Sequence[int], *, mean: float = 0.0, std: float = 0.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        """A tensor from N(mean, std), rounded to the compute dtype as the release stores what it keeps wide."""
        if std == 0.0:
            return torch.full(tuple(shape), mean, dtype=dtype or self.dtype, device=self._device)
        return self._normal(tuple(shape), self.dtype).mul_(std).add_(mean).to(dtype or self.dtype)

    def _stack(self, count: int, rows: int, inputs: int) -> Tensor | Fp8Weight:
        if self._is_fp8:
            return self._fp8((count, rows, inputs))
        weight = torch.empty(count, rows, inputs, dtype=self.dtype, device=self._device)
        for matrix in weight:
            matrix.copy_(self._normal((rows, inputs), self.dtype)).mul_(inputs**-0.5)
        return weight

    def _fp8(self, shape: tuple[int, ...]) -> Fp8Weight:
        """Codes are drawn matrix by matrix, so that no more than one is ever held unquantised."""
        codes = torch.empty(shape, dtype=torch.float8_e4m3fn, device=self._device)
        for matrix in codes.view(-1, *shape[-2:]):
            drawn = self._normal(tuple(matrix.shape), torch.bfloat16).to(torch.float8_e4m3fn)
            matrix.view(torch.uint8).copy_(drawn.view(torch.uint8))
        blocks = (*shape[:-2], -(-shape[-2] // GROUP), -(-shape[-1] // GROUP))
        return Fp8Weight(codes, torch.full(blocks, shape[-1] ** -0.5, dtype=torch.float32, device=self._device))

    def _normal(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=dtype, device=self._device)
