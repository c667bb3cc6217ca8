"""Recurrent states and convolution windows after a verify: only the accepted rows move them on."""

from stack.core.forward import ForwardContext
from stack.core.memory import ModelMemory
from stack.kernels import BoundOp
from stack.runner.speculator import DecodeBatch


class StateCommit:
    """Folds the first `count_R` rows of each request into its slot, by replay or from snapshots."""

    def __init__(self, kda_commit: BoundOp) -> None:
        self._kda_commit = kda_commit

    def __call__(self, batch: DecodeBatch, context: ForwardContext, memory: ModelMemory) -> None:
        """Advance every KDA layer in one call."""
        self._kda_commit(
            memory.state_SHLKV,
            memory.conv_SHLCDW,
            memory.ring_all,
            batch.slot_R,
            context.ring_R,
            batch.count_R,
            snapshots_LNWHKV=memory.snapshots_LNWHKV,
        )
