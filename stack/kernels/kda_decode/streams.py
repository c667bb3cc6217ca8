"""How the kernels of `kda_stream_verify.cu` and `kda_stream_commit.cu` are launched: blocks that stay and walk over the
heads of all requests."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stack.kernels.cuda_source import CudaKernel

if TYPE_CHECKING:
    import torch

VERIFY = Path(__file__).with_name("kda_stream_verify.cu")
COMMIT = Path(__file__).with_name("kda_stream_commit.cu")
SPREAD = CudaKernel(VERIFY, "kda_spread_rows")
ROW_THREADS = 128
"""A warp for each part of a request's rows: q, k, v and gates."""

CHOICES: Mapping[str, int] = {"KDA_BLOCKS": 2, "KDA_CHUNK_BLOCKS": 3}
"""What `kda_stream.cuh` has where nothing is defined."""

_ROW, _OPERAND_ROW = 2448, (128 + 8) * 2
_RAW = 8 * (128 * (2 * 2 + 4) + _OPERAND_ROW)
_ENDS = 2 * 3 * 3 * 128 * 2 + 2 * 8
_STATE = {"f32": 128 * 128 * 4, "bf16": 128 * 128 * 2}


def chain_bytes(kind: str) -> int:
    """Shared memory of a block that steps through rows: a state and rows under way, and rows as steps read them."""
    return _STATE[kind] + _RAW + 8 * _ROW


def fold_bytes(kind: str) -> int:
    """The same with the ends of the convolution's inputs."""
    return chain_bytes(kind) + _ENDS


def chunk_bytes(kind: str) -> int:
    """Shared memory of a block that multiplies: a state and rows under way, rows as operands, and their pairs."""
    return _STATE[kind] + _RAW + 2 * (16 + 8) * _OPERAND_ROW + 8 * 16 * 8 * 4 + 8 * 4


def roles_bytes(kind: str) -> int:
    """The same with rows of two turns, with two BF16 states or one FP32 state, and barriers."""
    states = _STATE[kind] * (1 if kind == "f32" else 2)
    return states + 2 * _RAW + 2 * (16 + 8) * _OPERAND_ROW + 8 * 16 * 8 * 4 + 2 * 8 * 4 + 4 * 8


def chunk_fold_bytes(kind: str) -> int:
    """`chunk_bytes` without q, with what the update of a state takes and the ends of the convolution's inputs."""
    updates = 2 * 8 * 2 * 8 * 8 * 2
    return _STATE[kind] + _RAW + _ENDS + 6 * 8 * _OPERAND_ROW + updates + 8 * 8 * 8 * 4 + (128 + 8) * 4


def stream_kernel(source: Path, name: str, shared_bytes: int, **choices: int) -> CudaKernel:
    """A kernel of a source with definitions of `CHOICES`; those that the source has anyway are left out."""
    differ = {key: value for key, value in choices.items() if value != CHOICES[key]}
    return CudaKernel(source, name, shared_bytes, defines=tuple(f"{key}={value}" for key, value in differ.items()))


def fitting_blocks(shared_bytes: int, most: int) -> int:
    """Blocks of so much shared memory that a multiprocessor has room for, at most `most`: each takes 1 KiB more."""
    return min(most, 228 * 1024 // (shared_bytes + 1024))


@cache
def resident_blocks(device: "torch.device", each: int) -> int:
    """Blocks at once on a device whose multiprocessors hold `each`."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count * each
