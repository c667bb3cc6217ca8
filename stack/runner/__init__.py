"""Static buffers, one forward per step plan, and the seam that speculation plugs into."""

from stack.runner.build import build_runner, decode_buckets, new_slot_table
from stack.runner.runner import Runner, StepHandle
from stack.runner.slots import SlotTable
from stack.runner.speculator import DecodeBatch, PlainDecoder, PrefillBatch, Sampler, Speculator

__all__ = [
    "DecodeBatch",
    "PlainDecoder",
    "PrefillBatch",
    "Runner",
    "Sampler",
    "SlotTable",
    "Speculator",
    "StepHandle",
    "build_runner",
    "decode_buckets",
    "new_slot_table",
]
