"""From a configuration to an instance that can step: weights, pools sized by the memory plan, runner and scheduler."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from stack.cache import CacheLayout, cache_layout, prefix_cache
from stack.cache.budget import MemoryPlan, plan_memory
from stack.cache.layout import geometries
from stack.cache.pages import PagePool
from stack.cache.states import StatePool, model_memory
from stack.config import EngineConfig
from stack.core.clock import Clock
from stack.core.geometry import ModelGeometry
from stack.engine.warm import warm_up
from stack.kernels.moe.routes import RouteRecorder
from stack.kernels.sample import OP as SAMPLE
from stack.models import load_model
from stack.runner import Runner, build_runner, new_slot_table
from stack.scheduler import Limits, Memory, Scheduler
from stack.speculation import build_speculator

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Everything of one worker but its loop and its sockets."""

    config: EngineConfig
    geometry: ModelGeometry
    layout: CacheLayout
    plan: MemoryPlan
    pages: PagePool
    states: StatePool
    runner: Runner
    scheduler: Scheduler
    impls: dict[str, str]
    """Op -> the implementation that was bound."""

    routes: RouteRecorder | None = None
    """What was recorded of the routers, written when the instance ends."""

    def close(self) -> None:
        """End the runner's stream, and write what was recorded."""
        self.runner.close()
        if self.routes is not None and self.routes.layers:
            notes = {"model": self.config.model.path, "weights": self.config.model.weights}
            self.routes.save(Path(self.config.kernels.moe_routes), notes)


def build_instance(config: EngineConfig, clock: Clock) -> Instance:
    """Load the model and allocate what the memory plan says. Raises ConfigError, CapacityError and their kin."""
    device = torch.device(config.model.device)
    if device.type == "cpu":
        torch.set_num_threads(config.model.num_threads)
    free_bytes = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    geometry, _, draft = geometries(config)
    layout = cache_layout(geometry, config, draft)
    plan = plan_memory(config, free_bytes=free_bytes)
    for note in plan.notes:
        _LOG.info("memory plan: %s", note)
    begun_s = time.perf_counter()
    model = load_model(config, device)
    _LOG.info("weights are on %s after %.1f s", device, time.perf_counter() - begun_s)
    recorder = None
    if config.kernels.moe_routes:
        recorder = RouteRecorder(geometry.num_experts, config.kernels.moe_routes_steps, every=8)
        model.record_routes(recorder)
    sample = SAMPLE.bind(config.kernels.sample, device.type)
    pages = PagePool(layout, plan.num_pages, device)
    states = StatePool(
        layout, plan.num_slots, plan.num_ring_entries, device, num_snapshot_entries=plan.num_snapshot_entries
    )
    memory = model_memory(pages, states, index_workspace_bytes=plan.index_workspace_bytes)
    slots = new_slot_table(config, plan.num_slots, plan.max_context, device)
    runner = build_runner(
        config,
        model,
        pages,
        states,
        memory,
        slots,
        sample,
        max_running=plan.max_running,
        speculator=build_speculator(config, model, memory, pages, states, sample),
    )
    if device.type == "cuda" and config.graphs.decode and config.role != "prefill":
        runner.capture(min(plan.max_context, _graph_context(config)), _LOG.info)
    scheduler = build_scheduler(config, geometry, plan, clock)
    if device.type == "cuda":
        num_prompts = warm_up(scheduler, runner)
        _LOG.info("ready to serve %.1f s after start, %d prompts warm", time.perf_counter() - begun_s, num_prompts)
    return Instance(
        config=config,
        geometry=geometry,
        layout=layout,
        plan=plan,
        pages=pages,
        states=states,
        runner=runner,
        scheduler=scheduler,
        impls={**model.impls, "sample": sample.impl},
        routes=recorder,
    )


def _graph_context(config: EngineConfig) -> int:
    """Longest context that captured steps serve: what the memory is planned for, and the rows of a verify."""
    return config.cache.expected_context + config.cache.expected_output + config.speculation.width


def build_scheduler(config: EngineConfig, geometry: ModelGeometry, plan: MemoryPlan, clock: Clock) -> Scheduler:
    """The scheduler over a memory plan's pages and slots; needs no device."""
    layout = plan.load.layout
    memory = Memory(
        prefix_cache(config, num_pages=plan.num_pages, num_slots=plan.num_slots),
        page_bytes=layout.page_bytes,
        slot_bytes=layout.slot_bytes,
        swap_bytes=config.cache.swap_bytes,
        slots_per_request=config.cache.slots_per_request,
    )
    limits = Limits(plan.max_context, plan.max_running, geometry.vocab_size, geometry.eos_token_ids)
    return Scheduler(config, limits, memory, clock)
