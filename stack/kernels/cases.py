"""What an op is tested and timed on: named calls, built on any device and dtype from a seed. Knows no op.

A case is one branch of an implementation: a shape, a dtype, padding, an empty request. `Draw` makes its tensors, so two
draws of the same seed give two equal sets, one for each implementation under comparison.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BOTH = (torch.float32, torch.bfloat16)


class Draw:
    """Random tensors of one seed, drawn on the CPU and moved to `device`; floats come in `dtype`."""

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, std: float = 1.0, mean: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Values from N(mean, std)."""
        values = torch.randn(*shape, generator=self._generator) * std + mean
        return values.to(dtype or self.dtype).to(self.device)

    def uniform(self, *shape: int) -> Tensor:
        """FP32 values in [0, 1)."""
        return torch.rand(*shape, generator=self._generator).to(self.device)

    def ints(self, values: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
        """The given integers."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def order(self, count: int) -> list[int]:
        """0 to count - 1, shuffled."""
        return [int(i) for i in torch.randperm(count, generator=self._generator)]

    def pool(self, count: int, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """`count` spans of `shape` that lie apart as in a page pool; span 0 is zeros, the others hold drawn values."""
        size = int(torch.tensor(shape).prod())
        values = torch.randn(count, size + 256, generator=self._generator)
        values[0] = 0.0
        values = values.to(dtype or self.dtype).to(self.device)
        return values[:, :size].unflatten(1, shape)

    def poison(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """NaNs, but zeros in entry 0: what must not be read before it is written."""
        values = torch.full(shape, float("nan"), dtype=torch.float32)
        values[0] = 0.0
        return values.to(dtype or self.dtype).to(self.device)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one call; `written` are those among them that the op writes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    written: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One named call and how closely implementations must agree on it."""

    name: str
    build: Callable[[Draw], Call]
    dtypes: tuple[torch.dtype, ...] = BOTH
    function: str = ""
    """Another function of the op's contract; empty for the one with the op's name."""
    is_exact: bool = False
    """Results are integers, codes or copies: they agree bit for bit."""
    is_set: bool = False
    """The order along the last dimension means nothing."""
    float32: float = 2e-5
    """Largest difference, over the value plus the root mean square of all of them, in FP32."""
    bfloat16: float = 0.02
    """The same in BF16."""

    def tolerance(self, dtype: torch.dtype) -> float:
        """The bound for `dtype`."""
        return 0.0 if self.is_exact else self.float32 if dtype == torch.float32 else self.bfloat16


@dataclass(frozen=True, slots=True)
class Packing:
    """Rows of several requests, packed as in a forward pass; requests with slot 0 are padding."""

    slot_R: Tensor
    start_R1: Tensor
    request_T: Tensor
    position_T: Tensor
    write_T: Tensor
    page_table_SP: Tensor

    @classmethod
    def of(
        cls, draw: Draw, prefixes: list[int], lens: list[int], *, page_size: int = 64, padding: int = 0
    ) -> "Packing":
        """Request r has slot r + 1, `prefixes[r]` earlier tokens and `lens[r]` rows; then `padding` rows of slot 0."""
        count = len(lens)
        pages_each = max(-(-(p + n) // page_size) for p, n in zip(prefixes, lens, strict=True))
        order = [page + 1 for page in draw.order(count * pages_each)]
        table = [[0] * pages_each] + [order[r * pages_each : (r + 1) * pages_each] for r in range(count)]
        position = [p + i for p, n in zip(prefixes, lens, strict=True) for i in range(n)] + [0] * padding
        request = [r for r, n in enumerate(lens) for _ in range(n)] + [count] * padding
        rows = [(table[r + 1], p) for r, p in zip(request, position, strict=True) if r < count]
        write = [pages[p // page_size] * page_size + p % page_size for pages, p in rows]
        starts = [sum(lens[:r]) for r in range(count + 1)]
        has_padding = [count] if padding else []
        return cls(
            draw.ints([*range(1, count + 1), *(0 for _ in has_padding)]),
            draw.ints([*starts, *(starts[-1] for _ in has_padding)]),
            draw.ints(request),
            draw.ints(position),
            draw.ints(write + [0] * padding, torch.int64),
            draw.ints([page for row in table for page in row]).view(count + 1, pages_each),
        )

    @property
    def num_pages(self) -> int:
        """Pages with the sink."""
        return self.page_table_SP[1:].numel() + 1
