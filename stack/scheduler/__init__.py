"""Who runs in the next step: pure Python over integers, no torch."""

from stack.scheduler.memory import Memory
from stack.scheduler.request import Phase, Request
from stack.scheduler.scheduler import Computed, Limits, Scheduler

__all__ = ["Computed", "Limits", "Memory", "Phase", "Request", "Scheduler"]
