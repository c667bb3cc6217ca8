"""Descriptions of matrices in global memory for the copy engine: `tensor_map.cuh` loads boxes of them.

A map holds an address, so it is of one matrix at one place. Making one is a call of the driver, microseconds; whoever
launches often keeps it. Knows no op.
"""

import ctypes

from stack.kernels.cuda_source import check, driver

WORDS, ALIGNMENT = 16, 64
BOX_BYTES = 128
"""Width of every box: one swizzle span."""

_UINT8, _NOT_INTERLEAVED, _SWIZZLE_128B, _PROMOTE_256B, _ZEROS_OUTSIDE = 0, 0, 3, 3, 0


def byte_matrix(address: int, rows: int, width: int, box_rows: int) -> ctypes.Array[ctypes.c_uint64]:
    """The map of a contiguous matrix of `rows` x `width` bytes, loaded `box_rows` (at most 256) x 128 bytes at a time.

    `address` and `width` are multiples of 16. Raises RuntimeError in the driver's words where it refuses.
    """
    room = (ctypes.c_uint64 * (WORDS + ALIGNMENT // 8))()
    at = -(-ctypes.addressof(room) // ALIGNMENT) * ALIGNMENT
    code = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at),
        _UINT8,
        2,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * 2)(width, rows),
        (ctypes.c_uint64 * 1)(width),
        (ctypes.c_uint32 * 2)(BOX_BYTES, box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        _NOT_INTERLEAVED,
        _SWIZZLE_128B,
        _PROMOTE_256B,
        _ZEROS_OUTSIDE,
    )
    check(code, f"describing a matrix of {rows} x {width} bytes")
    return (ctypes.c_uint64 * WORDS).from_buffer_copy(ctypes.string_at(at, 8 * WORDS))
