"""The table of faults: who fails, when, how, and what must become of the request that it hits and of the others.

`victim` and `others`: `exact` (the undisturbed tokens), `clean` (an error status, or a connection that breaks after a
correct beginning), `either`, or `gone` (its client left). Wrong tokens are never allowed. `ci` marks the reduced set.
"""

from dataclasses import dataclass
from typing import Literal

Who = Literal["client", "prefill", "decode", "router", "room", "wire"]
When = Literal["idle", "prefill", "transfer", "decode"]
Fate = Literal["exact", "clean", "either", "gone", "none"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row."""

    who: Who
    when: When
    how: str
    victim: Fate
    others: Fate = "exact"
    ci: bool = False

    def __str__(self) -> str:
        return f"{self.who}-{self.when}-{self.how}"


STAGES: tuple[When, ...] = ("prefill", "transfer", "decode")


def table() -> list[Scenario]:
    """All rows, those that end a process last in their group."""
    return [*_clients(), *_rooms(), *_routers(), *_prefills(), *_decodes(), *_wires()]


def _clients() -> list[Scenario]:
    rows = [Scenario("client", when, "leaves_stream", "gone", ci=when != "decode") for when in STAGES]
    rows += [Scenario("client", when, "leaves_before_answer", "gone") for when in STAGES]
    rows += [Scenario("client", when, "aborts_on_decode", "clean") for when in STAGES]
    rows += [Scenario("client", when, "aborts_on_prefill", "clean") for when in ("prefill", "transfer")]
    return rows


def _rooms() -> list[Scenario]:
    return [
        Scenario("room", "idle", "reaches_prefill_alone", "clean", ci=True),
        Scenario("room", "idle", "reaches_decode_alone", "clean"),
        Scenario("room", "idle", "is_used_again", "clean", ci=True),
        Scenario("room", "idle", "is_used_twice_at_once", "exact"),
        Scenario("room", "idle", "has_unequal_prompts", "clean", ci=True),
        Scenario("room", "idle", "names_a_closed_port", "clean", ci=True),
        Scenario("room", "idle", "names_no_prefill", "clean"),
    ]


def _routers() -> list[Scenario]:
    return [
        *(Scenario("router", when, "stops_shortly", "exact") for when in STAGES),
        *(Scenario("router", when, "killed", "clean", ci=when == "transfer") for when in STAGES),
    ]


def _prefills() -> list[Scenario]:
    after: dict[When, Fate] = {"prefill": "clean", "transfer": "clean", "decode": "exact", "idle": "none"}
    rows = [Scenario("prefill", when, "stops_shortly", "exact") for when in STAGES]
    rows += [Scenario("prefill", when, "stops_for_long", after[when], ci=when == "transfer") for when in STAGES]
    rows += [Scenario("prefill", when, "drains", "exact") for when in STAGES]
    for how in ("worker_killed", "http_killed"):
        for when, fate in after.items():
            rows.append(Scenario("prefill", when, how, fate, ci=(how, when) == ("worker_killed", "transfer")))
    return rows


def _decodes() -> list[Scenario]:
    long: dict[When, Fate] = {"prefill": "either", "transfer": "either", "decode": "exact"}  # the router may retry
    rows = [Scenario("decode", when, "stops_shortly", "exact", ci=when == "decode") for when in STAGES]
    rows += [Scenario("decode", when, "stops_for_long", fate, "either") for when, fate in long.items()]
    rows += [Scenario("decode", when, "drains", "exact") for when in STAGES]
    for how in ("worker_killed", "http_killed"):
        rows.append(Scenario("decode", "idle", how, "none", "none"))
        for when in STAGES:
            ci = (how, when) == ("worker_killed", "decode")
            rows.append(Scenario("decode", when, how, "clean", "either", ci=ci))
    return rows


def _wires() -> list[Scenario]:
    return [
        Scenario("wire", "prefill", "loses_reserve", "exact"),
        Scenario("wire", "transfer", "loses_done", "exact"),
        Scenario("wire", "transfer", "loses_beat_and_pulse", "exact"),
        Scenario("wire", "prefill", "says_all_twice", "exact"),
        Scenario("wire", "transfer", "is_silent", "clean"),
        Scenario("wire", "prefill", "is_slow", "exact"),
    ]
