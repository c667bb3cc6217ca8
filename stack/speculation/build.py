"""Puts a speculator together from the configuration, the loaded target and its pools."""

from pathlib import Path
from typing import TYPE_CHECKING

from stack.config import EngineConfig
from stack.core import ConfigError, DraftGeometry
from stack.core.memory import ModelMemory
from stack.kernels import BoundOp
from stack.kernels.catalog import OPS
from stack.models import TargetModel, open_weights
from stack.models.dflash2 import DFlash2Draft
from stack.models.draft_context import DraftContext
from stack.models.mtp import MtpLayer
from stack.runner.speculator import Speculator
from stack.speculation.acceptance import Acceptance
from stack.speculation.commit import StateCommit
from stack.speculation.dflash2 import DFlash2Speculator
from stack.speculation.mtp import MtpSpeculator

if TYPE_CHECKING:
    from stack.cache.pages import PagePool
    from stack.cache.states import StatePool


def build_speculator(
    config: EngineConfig,
    target: TargetModel,
    memory: ModelMemory,
    pages: "PagePool",
    states: "StatePool",
    sample: BoundOp,
) -> Speculator | None:
    """The drafter of `config.speculation`, or None when it is off. Raises ConfigError for a draft that does not fit."""
    if config.speculation.method == "off":
        return None
    kda_commit = OPS["kda_commit"].bind(config.kernels.kda_commit, states.device.type)
    commit = StateCommit(kda_commit)
    acceptance = Acceptance(sample, config.speculation.force_accept_length)
    if config.speculation.method == "dflash2":
        return _dflash2(config, target, memory, acceptance, commit, sample)
    return _mtp(config, target, memory, pages, states, acceptance, commit)


def _dflash2(
    config: EngineConfig,
    target: TargetModel,
    memory: ModelMemory,
    acceptance: Acceptance,
    commit: StateCommit,
    sample: BoundOp,
) -> DFlash2Speculator:
    folder = Path(config.speculation.draft_path)
    embed_VC, head_VC = target.embed_VC, target.head_VC
    if config.model.weights == "random":
        geometry = DraftGeometry.from_file(folder)
        draft = DFlash2Draft.random(geometry, embed_VC, head_VC, config.kernels, config.model.random_seed + 1)
    else:
        draft = DFlash2Draft.load(folder, embed_VC, head_VC, config.kernels)
    if draft.geometry.block_size != config.speculation.verify_width:
        raise ConfigError(
            f"speculation.verify_width must be the draft's block size {draft.geometry.block_size}, "
            f"not {config.speculation.verify_width}"
        )
    context = DraftContext(memory.draft, draft.geometry.window, config.cache.draft_kv)
    return DFlash2Speculator(draft, context, acceptance, commit, sample)


def _mtp(
    config: EngineConfig,
    target: TargetModel,
    memory: ModelMemory,
    pages: "PagePool",
    states: "StatePool",
    acceptance: Acceptance,
    commit: StateCommit,
) -> MtpSpeculator:
    geometry = target.geometry
    if geometry.num_mtp_layers != 1:
        raise ConfigError("speculation.method mtp needs a checkpoint with one MTP layer; use dflash2 or off")
    layer = MtpLayer(
        geometry,
        target.ops,
        open_weights(config, states.device),
        target.embed_VC,
        layer_number=geometry.num_layers,
    )
    return MtpSpeculator(
        target,
        layer,
        memory,
        acceptance,
        commit,
        num_slots=states.num_slots + 1,
        num_steps=config.speculation.num_steps,
        page_size=config.cache.page_size,
        num_pages=pages.num_pages + 1,
        share_index=config.speculation.share_index,
    )
