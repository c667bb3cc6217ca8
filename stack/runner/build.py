"""Puts a runner together from a model and its pools."""

from typing import TYPE_CHECKING

import torch

from stack.config import EngineConfig
from stack.core.memory import ModelMemory
from stack.runner.decode import DecodeSteps
from stack.runner.moves import Moves
from stack.runner.prefill import PrefillSteps
from stack.runner.runner import Runner
from stack.runner.slots import SlotTable
from stack.runner.speculator import PlainDecoder, Sampler, Speculator
from stack.runner.stream import Stream, open_stream

if TYPE_CHECKING:
    from stack.cache.pages import PagePool
    from stack.cache.states import StatePool
    from stack.kernels.binding import BoundOp
    from stack.models import TargetModel


def new_slot_table(config: EngineConfig, num_slots: int, max_context: int, device: torch.device) -> SlotTable:
    """Device state for slots 0 to `num_slots`, with page-table rows for `max_context` tokens and a verify beyond
    them."""
    pages_per_request = -(-(max_context + 2 * config.speculation.width) // config.cache.page_size)
    return SlotTable(num_slots + 1, pages_per_request, device)


def build_runner(
    config: EngineConfig,
    model: "TargetModel",
    pages: "PagePool",
    states: "StatePool",
    memory: ModelMemory,
    slots: SlotTable,
    sample: "BoundOp",
    *,
    max_running: int,
    speculator: Speculator | None = None,
    stream: Stream | None = None,
) -> Runner:
    """A runner over `memory` with the sampling op `sample`; without a speculator, one token a step."""
    device = states.device
    sampler = Sampler(slots, sample, sample.function("uniforms"))
    guess = speculator or PlainDecoder(sampler)
    page_size = config.cache.page_size
    return Runner(
        stream=stream or open_stream(device),
        slots=slots,
        prefill=PrefillSteps(model, memory, slots, sampler, guess, page_size=page_size),
        decode=DecodeSteps(
            model,
            memory,
            slots,
            guess,
            page_size=page_size,
            buckets=decode_buckets(config, max_running),
            device=device,
        ),
        moves=Moves(pages, states, guess.slot_state),
        speculator=guess,
        device=device,
        max_rows=max(states.num_slots, max_running) + 1,
        war_barrier=config.scheduler.war_barrier,
    )


def decode_buckets(config: EngineConfig, max_running: int) -> tuple[int, ...]:
    """Batch sizes that decode runs with, padded up to. On the CPU every size is its own bucket, since nothing is
    captured. A running limit above the largest size adds none: memory often holds far more requests than are ever
    driven, and a bucket of that many would be the slowest to capture; such batches run eagerly."""
    if config.model.device == "cpu" or not config.graphs.decode:
        return ()
    sizes = {size for size in config.graphs.decode_batch_sizes if size < max_running}
    if max_running <= max(config.graphs.decode_batch_sizes, default=0):
        sizes.add(max_running)
    return tuple(sorted(sizes))
