"""Runs the target model over real page and state pools, step by step, as a scheduler would but without one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stack.cache.layout import cache_layout
from stack.cache.pages import PagePool
from stack.cache.states import StatePool, model_memory
from stack.config import EngineConfig, with_settings
from stack.core import ForwardContext
from stack.models import Hidden, TargetModel, load_model

EXACT = {
    "model.compute_dtype": "float32",
    "cache.kv_dtype": "float32",
    "cache.index_dtype": "float32",
    "cache.conv_dtype": "float32",
}
"""FP32 everywhere: what bit-identity and the comparison with transformers need."""


def engine_config(folder: Path, settings: dict[str, Any] | None = None) -> EngineConfig:
    """A configuration for the checkpoint in `folder`."""
    return with_settings(EngineConfig(), {"model.path": str(folder), **EXACT, **(settings or {})})


class TargetSession:
    """One model with its own poisoned pools; request r has slot r + 1 and pages of its own, in a scattered order."""

    def __init__(
        self, config: EngineConfig, *, num_requests: int = 1, max_tokens: int = 1280, model: TargetModel | None = None
    ) -> None:
        self.config = config
        self.device = torch.device(config.model.device)
        self.model = model or load_model(config, self.device)
        layout = cache_layout(self.model.geometry, config)
        page_size, per_request = config.cache.page_size, -(-max_tokens // config.cache.page_size)
        self.pages = PagePool(layout, num_requests * per_request, self.device, poison=True)
        self.states = StatePool(layout, num_requests, num_requests, self.device, poison=True)
        self.memory = model_memory(self.pages, self.states, index_workspace_bytes=2**24)
        order = torch.randperm(num_requests * per_request, generator=torch.Generator().manual_seed(7)) + 1
        self.page_table_SP = torch.zeros(num_requests + 1, per_request, dtype=torch.int32)
        self.page_table_SP[1:] = order.view(num_requests, per_request)
        self.page_table_SP = self.page_table_SP.to(self.device)
        self.page_size = page_size
        self.lengths = [0] * num_requests

    def prefill(self, tokens: dict[int, Sequence[int]], **options: Any) -> Hidden:
        """One pass over new prompt tokens of some requests (request -> tokens)."""
        lens = [len(part) for part in tokens.values()]
        starts = [self.lengths[request] for request in tokens]
        context = self._context(list(tokens), starts, lens, "prefill", 0)
        context = replace(context, extend_lens=tuple(lens), prefix_lens=tuple(starts))
        hidden = self._forward(tokens, context, **options)
        self._advance(tokens)
        return hidden

    def decode(self, tokens: dict[int, int], **options: Any) -> Hidden:
        """One token for each of some requests."""
        rows = {request: [token] for request, token in tokens.items()}
        starts = [self.lengths[request] for request in rows]
        hidden = self._forward(rows, self._context(list(rows), starts, [1] * len(rows), "decode", 1), **options)
        self._advance(rows)
        return hidden

    def verify(self, tokens: dict[int, Sequence[int]], **options: Any) -> Hidden:
        """`width` rows for each of some requests; lengths stay until `accept`."""
        (width,) = {len(part) for part in tokens.values()}
        starts = [self.lengths[request] for request in tokens]
        context = self._context(list(tokens), starts, [width] * len(tokens), "verify", width)
        return self._forward(tokens, context, **options)

    def accept(self, counts: dict[int, int]) -> None:
        """Fold the first rows of the last verify of these requests into their states."""
        from stack.kernels.catalog import OPS

        slot_R = self._ints([request + 1 for request in counts])
        commit = OPS["kda_commit"].bind(self.config.kernels.kda_commit, self.device.type)
        accepted_R = self._ints(list(counts.values()))
        memory = self.memory
        commit(memory.state_SHLKV, memory.conv_SHLCDW, memory.ring_all, slot_R, slot_R, accepted_R)
        for request, count in counts.items():
            self.lengths[request] += count

    def logits(self, hidden: Hidden) -> Tensor:
        """FP32 logits of every row."""
        return self.model.logits(hidden.last_TC)

    def _forward(self, tokens: dict[int, Sequence[int]], context: ForwardContext, **options: Any) -> Hidden:
        token_T = torch.tensor([t for part in tokens.values() for t in part], device=self.device)
        return self.model.forward(token_T, context, self.memory, **options)

    def _advance(self, tokens: dict[int, Sequence[int]]) -> None:
        for request, part in tokens.items():
            self.lengths[request] += len(part)

    def _context(
        self, requests: list[int], starts: list[int], lens: list[int], kind: Any, width: int
    ) -> ForwardContext:
        position = [start + i for start, count in zip(starts, lens, strict=True) for i in range(count)]
        row_request = [r for r, count in enumerate(lens) for _ in range(count)]
        slot_R = self._ints([request + 1 for request in requests])
        request_T, position_T = self._ints(row_request), self._ints(position)
        page_T = self.page_table_SP[slot_R.long()[request_T.long()], position_T.long() // self.page_size]
        start_R1 = self._ints([0, *torch.tensor(lens).cumsum(0).tolist()])
        return ForwardContext(
            kind=kind,
            width=width,
            max_context=max(position) + 1,
            request_T=request_T,
            position_T=position_T,
            write_T=page_T.long() * self.page_size + position_T.long() % self.page_size,
            start_R1=start_R1,
            slot_R=slot_R,
            page_table_SP=self.page_table_SP,
            ring_R=slot_R,
        )

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)
