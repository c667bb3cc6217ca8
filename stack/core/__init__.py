"""Requests, step contexts, messages, errors and the clock: what every part of the engine speaks of."""

from stack.core.clock import Clock, MonotonicClock
from stack.core.draft_geometry import DraftGeometry
from stack.core.errors import (
    CapacityError,
    ConfigError,
    EngineError,
    MissingImplementationError,
    RequestError,
    TransferError,
)
from stack.core.forward import ForwardContext
from stack.core.geometry import ModelGeometry
from stack.core.sampling import SamplingParams

__all__ = [
    "CapacityError",
    "Clock",
    "ConfigError",
    "DraftGeometry",
    "EngineError",
    "ForwardContext",
    "MissingImplementationError",
    "ModelGeometry",
    "MonotonicClock",
    "RequestError",
    "SamplingParams",
    "TransferError",
]
