"""What to change where a load does not fit: every setting that a refusal names was tried and makes the plan succeed.

Knows the settings that decide what fits, and asks the caller whether a change of them does; no equation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stack.config import CacheConfig

MIB = 2**20
MOST_BUDGET_BYTES = 2**50
Fits = Callable[[Mapping[str, Any]], bool]
"""Whether the plan succeeds with these dotted settings in place of the configured ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What may be changed, and how far."""

    cache: CacheConfig
    context: int
    """Planned prompt tokens, after the model's limit."""
    output: int
    """Planned output tokens; 0 where an instance generates nothing."""
    extra: int
    """Requests beyond the running limit that hold memory while their cache arrives."""
    budget_bytes: int
    """The cache budget that was too small."""
    most_budget_bytes: int
    """The largest budget that the device leaves; 0 where the device is not known."""
    is_wished: bool
    """Whether a running limit is asked for."""
    is_share: bool
    """Whether the budget is `mem_fraction` of the device, not a number of bytes."""


def ways_out(room: Room, fits: Fits, given: Mapping[str, Any] | None = None) -> list[str]:
    """Changes that work each by itself, in words; on top of `given`, which every one of them then names too."""
    given = given or {}
    tried = [_context(room, fits, given), _spares(room, fits, given), *_split(room, fits, given)]
    if "cache.budget_bytes" not in given:
        tried.append(_share(room, fits) if room.is_share else _budget(room, fits))
    found = [{**given, **changes} for changes in tried if changes]
    return [_words(changes) for changes in found or _together(room, fits)]


def _words(changes: Mapping[str, Any]) -> str:
    return "set " + " and ".join(f"{path} to {'null' if value is None else value}" for path, value in changes.items())


def _together(room: Room, fits: Fits) -> list[dict[str, Any]]:
    """Where no setting alone makes room: fewer requests and all of the device, and then what prompts may have."""
    changes: dict[str, Any] = {"scheduler.max_running": None} if room.is_wished else {}
    if room.extra:
        changes["scheduler.extra_inflight"] = 0
    if room.is_share:
        changes["cache.mem_fraction"] = 1.0
    elif room.most_budget_bytes >= MIB:
        changes["cache.budget_bytes"] = room.most_budget_bytes // MIB * MIB
    if changes and fits(changes):
        return [changes]
    shorter = _context(room, fits, changes)
    return [{**changes, **shorter}] if shorter else []


def _context(room: Room, fits: Fits, given: Mapping[str, Any]) -> dict[str, Any]:
    """A shorter prompt; where none is short enough, a shorter output."""
    if most := _largest(lambda tokens: fits({**given, "cache.expected_context": tokens}), room.context - 1):
        return {"cache.expected_context": most}
    most = _largest(lambda tokens: fits({**given, "cache.expected_output": tokens}), room.output - 1)
    return {"cache.expected_output": most} if most else {}


def _spares(room: Room, fits: Fits, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fewer requests whose cache arrives, or fewer states kept for later prompts."""
    for path, now in (
        ("scheduler.extra_inflight", room.extra),
        ("cache.snapshot_slots", room.cache.snapshot_slots or 0),
    ):
        if fitting := _largest(lambda count, path=path: fits({**given, path: count - 1}), now):  # type: ignore[misc]
            return {path: fitting - 1}
    return {}


def _split(room: Room, fits: Fits, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """With a fixed split: another share of the slots, or a split that follows the load."""
    if room.cache.pool_split != "auto":
        return []
    path, solved = "cache.auto_state_share", {"cache.pool_split": "solved"}
    shares = [percent / 100 for percent in range(1, 100) if fits({**given, path: percent / 100})]
    middle = [{path: shares[len(shares) // 2]}] if shares else []
    return [*middle, *([solved] if fits({**given, **solved}) else [])]


def _share(room: Room, fits: Fits) -> dict[str, Any]:
    percents = range(int(room.cache.mem_fraction * 100) + 1, 101)
    return next(({"cache.mem_fraction": n / 100} for n in percents if fits({"cache.mem_fraction": n / 100})), {})


def _budget(room: Room, fits: Fits) -> dict[str, Any]:
    """The least budget that works, in whole MiB."""
    path = "cache.budget_bytes"
    low = max(room.budget_bytes, 0) // MIB
    high = room.most_budget_bytes // MIB
    if not room.most_budget_bytes:
        high = max(2 * low, 1)
        while not fits({path: high * MIB}) and high * MIB < MOST_BUDGET_BYTES:
            high *= 2
    if high <= low or not fits({path: high * MIB}):
        return {}
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits({path: middle * MIB}) else (middle, high)
    return {path: high * MIB}


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` that halving finds to fit; 0 where it finds none."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
