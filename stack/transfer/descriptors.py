"""From ids of pages or slots to the fewest spans of bytes.

An item is one contiguous span, and items that are neighbours on both sides are one span together: 64 pages of 64 KiB in
one run are one descriptor of 4 MiB, which over NVLink is twenty times faster than the 64. NIXL joins neighbours itself
where a prepared list is indexed in ascending order, so all that is needed is the order.
"""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


def paired(local: list[int], remote: list[int]) -> tuple[Ids, Ids]:
    """Both id lists ordered by the local id, so that runs on both sides lie next to each other."""
    if len(local) != len(remote):
        raise ValueError(f"{len(local)} items cannot be written to {len(remote)} places")
    local_N = np.asarray(local, dtype=np.int32)
    order = np.argsort(local_N, kind="stable")
    return local_N[order], np.asarray(remote, dtype=np.int32)[order]


def num_runs(local_N: Ids, remote_N: Ids) -> int:
    """Descriptors that remain after joining neighbours; both arguments as `paired` orders them."""
    if not len(local_N):
        return 0
    joins = (np.diff(local_N) == 1) & (np.diff(remote_N) == 1)
    return int(len(local_N) - joins.sum())


def strided(base: int, item_bytes: int, count: int, device_id: int) -> NDArray[np.uint64]:
    """The description of a whole pool as one row: address, length, device, stride, count."""
    return np.array([[base, item_bytes, device_id, item_bytes, count]], dtype=np.uint64)
