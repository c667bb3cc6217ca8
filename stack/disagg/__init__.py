"""Handing a request from a prefill instance to a decode instance: who knows what, who waits for whom, and what fails
how.

`PrefillHandoff` and `DecodeHandoff` are what the engine's loop calls. Both are thin: the life of a room is a table
(`prefill_states`, `decode_states`) run by a core without sockets, threads or a clock (`prefill_core`, `decode_core`).
"""

from stack.disagg.decode import DecodeHandoff
from stack.disagg.events import Arrived, DecodeEvent, Failed, PrefillEvent, Released, Reserved, Sent
from stack.disagg.messages import TransferStats
from stack.disagg.prefill import PrefillHandoff

__all__ = [
    "Arrived",
    "DecodeEvent",
    "DecodeHandoff",
    "Failed",
    "PrefillEvent",
    "PrefillHandoff",
    "Released",
    "Reserved",
    "Sent",
    "TransferStats",
]
