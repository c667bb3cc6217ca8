"""Which sessions of a cell make its value: those that ran the code and settings of the newest one, and no others.

Knows no files and no figures. The report counts by this rule, and `np1d run` asks by it which sessions it still needs.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

WhatRan = tuple[str | None, str | None]
"""Digest of a session's plan, prompts aside, and digest of the code."""


class Began(Protocol):
    """A session that tells when it began and what it ran."""

    @property
    def started_unix_s(self) -> float:
        """When it began."""

    @property
    def what_ran(self) -> WhatRan:
        """What it ran."""


Session = TypeVar("Session", bound=Began)


def counted(valid: Iterable[Session]) -> list[Session]:
    """Of the valid sessions of one cell, those whose values count."""
    sessions = list(valid)
    newest = max(sessions, key=lambda session: session.started_unix_s, default=None)
    return [session for session in sessions if newest and session.what_ran == newest.what_ran]


def what_ran(status: Mapping[str, Any]) -> WhatRan:
    """What a `status.json` says that its session ran."""
    return status.get("key"), status.get("measured_code")


def started_unix_s(status: Mapping[str, Any]) -> float:
    """When a `status.json` says that its session began; 0 where it does not say."""
    return float(status.get("started_unix_s") or 0.0)
