"""Weights out of Hugging Face safetensors. A matrix is FP8 exactly where its `_scale_inv` sibling exists."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from stack.core import ConfigError
from stack.kernels.quantized import GROUP, Fp8Weight
from stack.layers.weights import Experts

_PREFIXES = ("model.language_model.", "model.", "")
_SCALE = "_scale_inv"


class CheckpointWeights:
    """The folder's tensors by name, each read when asked for, straight onto the device."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ConfigError(
                f"no safetensors in {folder}; point model.path at a checkpoint, or set model.weights: random"
            )
        self.dtype = dtype
        self._folder = folder
        self._device = device
        self._files = [safe_open(str(file), framework="pt", device=str(device)) for file in files]
        self._file_of = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - not a mapping

    def linear(self, name: str, rows: int, inputs: int, *, quantized: bool = False) -> Tensor | Fp8Weight:
        """The matrix `name` [rows, inputs], FP8 where it was stored so."""
        codes = self._read(name, (rows, inputs))
        if not self.has(name + _SCALE):
            return codes.to(self.dtype)
        blocks = (-(-rows // GROUP), -(-inputs // GROUP))
        return Fp8Weight(codes, self._read(name + _SCALE, blocks).float())

    def experts(self, prefix: str, num_experts: int, inner: int, width: int) -> Experts:
        """All of `{prefix}{e}.{gate,up,down}_proj.weight`, stacked."""
        gate_up = _Stack(num_experts, 2 * inner, width)
        down = _Stack(num_experts, width, inner)
        for expert in range(num_experts):
            for part, row in (("gate", 0), ("up", inner)):
                gate_up.put(expert, row, self.linear(f"{prefix}{expert}.{part}_proj.weight", inner, width))
            down.put(expert, 0, self.linear(f"{prefix}{expert}.down_proj.weight", width, inner))
        return Experts(gate_up.weight, down.weight)

    def tensor(
        self, name: str, shape: Sequence[int], *, mean: float = 0.0, std: float = 0.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor `name` in `dtype`; `mean` and `std` are for drawn weights."""
        return self._read(name, tuple(shape)).to(dtype or self.dtype)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`."""
        return any(prefix + name in self._file_of for prefix in _PREFIXES)

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        full = next((prefix + name for prefix in _PREFIXES if prefix + name in self._file_of), None)
        if full is None:
            raise ConfigError(f"the checkpoint in {self._folder} lacks {name}; it does not fit its config.json")
        tensor: Tensor = self._file_of[full].get_tensor(full)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{full} in {self._folder} has shape {tuple(tensor.shape)}; its config.json asks for {shape}"
            )
        return tensor


class _Stack:
    """Matrices of one shape, copied one by one into a single tensor (or codes and scales)."""

    def __init__(self, count: int, rows: int, inputs: int) -> None:
        self._count, self._rows, self._inputs = count, rows, inputs
        self._weight: Tensor | Fp8Weight | None = None

    @property
    def weight(self) -> Tensor | Fp8Weight:
        """The stack; every matrix must have been put."""
        assert self._weight is not None
        return self._weight

    def put(self, index: int, row: int, part: Tensor | Fp8Weight) -> None:
        """Copy `part` into matrix `index` from `row` on."""
        if self._weight is None:
            self._weight = self._allocate(part)
        if isinstance(part, Tensor):
            if not isinstance(self._weight, Tensor):
                raise ConfigError("experts of one layer must all be FP8 or all be unquantised")
            self._weight[index, row : row + part.shape[0]] = part
            return
        if isinstance(self._weight, Tensor):
            raise ConfigError("experts of one layer must all be FP8 or all be unquantised")
        codes = self._weight.codes_NK[index, row : row + part.codes_NK.shape[0]]
        codes.view(torch.uint8).copy_(part.codes_NK.view(torch.uint8))
        block = row // GROUP
        scale = self._weight.scale_NK[index, block : block + part.scale_NK.shape[0]]
        if row % GROUP and not (self._rows <= GROUP and torch.equal(scale, part.scale_NK)):
            raise ConfigError(
                "FP8 experts need moe_intermediate_size to be a multiple of 128, or gate and up in one block of 128 "
                "rows with one scale"
            )
        scale.copy_(part.scale_NK)

    def _allocate(self, part: Tensor | Fp8Weight) -> Tensor | Fp8Weight:
        shape = (self._count, self._rows, self._inputs)
        if isinstance(part, Tensor):
            return torch.empty(shape, dtype=part.dtype, device=part.device)
        blocks = (self._count, -(-self._rows // GROUP), part.scale_NK.shape[1])
        device = part.codes_NK.device
        codes = torch.empty(shape, dtype=part.codes_NK.dtype, device=device)
        return Fp8Weight(codes, torch.empty(blocks, dtype=torch.float32, device=device))
