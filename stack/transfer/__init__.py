"""Moving pages and state slots between instances by NIXL: whole pools registered once, few large writes, one thread."""

from stack.transfer.agent import TransferAgent
from stack.transfer.spans import Pools, Spans
from stack.transfer.worker import Outcome, TransferWorker, Write

__all__ = ["Outcome", "Pools", "Spans", "TransferAgent", "TransferWorker", "Write"]
