"""What a reader needs to believe or repeat a number: validity, failures, rows and their questions, provenance."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from reports.claims.claim import published_h200
from reports.claims.verdict import REAL_LABELS
from reports.gpu_log import GpuView, gpu_views
from reports.material import Material
from reports.results import Session
from reports.tables.table import Table, show

_PUBLISHED_NAMES = {"pytorch": "torch", "deepgemm": "sgl-deep-gemm", "sglang_router": "sglang-router"}


def sessions_table(material: Material) -> Table:
    """Every session: its question, what is simulated, what was left out, how it ended."""
    superseded = material.results.superseded
    rows = [
        {
            "session": session.name,
            "outcome": "superseded" if session in superseded else session.outcome,
            "question": session.plan.get("question", ""),
            "expected": _expected(session.plan.get("expect")),
            "labels": simulated_words(session.labels) or "nothing",
            "left_out": "; ".join(f"{name}: {why}" for name, why in session.plan.get("left_out", {}).items()),
            "passes": len(session.measured.get("passes", ())) if session.outcome == "ok" else 0,
            "duration_s": session.status.get("duration_s"),
        }
        for session in material.results.sessions
    ]
    return Table(
        name="sessions",
        title="Sessions",
        caption="A session is one start of the servers. The expectation was written down before the row was run. "
        "One that a session of newer code or settings superseded is in no number.",
        frame=pd.DataFrame(rows),
        headers={
            "session": "session",
            "outcome": "ended",
            "question": "question",
            "expected": "expected",
            "labels": "simulated or scaled",
            "left_out": "left out here",
            "duration_s": "took, s",
        },
    )


def levels_table(material: Material) -> Table:
    """Service levels that a workload declares, and whether a valid session met them."""
    rows = [
        {"session": session.name, "level": level.get("slo"), "value": level.get("value"), "met": level.get("met")}
        for session in material.results.sessions
        if session.outcome == "ok"
        for level in session.measured.get("slo", ())
    ]
    return Table(
        name="levels",
        title="Service levels",
        caption="The published limits, held against each valid session; at another scale for orientation only.",
        frame=pd.DataFrame(rows),
        empty="No valid session declares a service level.",
    )


def validity_table(material: Material) -> Table:
    """Every rule of every session that got as far as being judged."""
    rows = [
        {
            "session": session.name,
            "rule": rule.get("rule"),
            "verdict": rule.get("verdict"),
            "value": show(rule.get("value")),
            "limit": show(rule.get("limit")),
            "source": rule.get("source"),
            "reason": rule.get("reason", ""),
        }
        for session in material.results.sessions
        for rule in session.measured.get("validity", {}).get("rules", ())
    ]
    return Table(
        name="validity",
        title="Validity rules",
        caption="Judged before any metric. One failed rule makes the session invalid, and its values are not shown.",
        frame=pd.DataFrame(rows),
        empty="No session was judged.",
    )


def failures_table(material: Material) -> Table:
    """Sessions that are no numbers, with the reason."""
    rows = [
        {
            "session": session.name,
            "outcome": session.outcome,
            "kind": session.status.get("kind") or ("validity" if session.outcome == "invalid" else ""),
            "reason": session.reason,
        }
        for session in material.results.not_ok
    ]
    rows += [
        {
            "session": session.name,
            "outcome": "earlier attempt stands",
            "kind": session.status["newer"]["kind"],
            "reason": f"a newer {session.newer}",
        }
        for session in material.results.sessions
        if session.newer
    ]
    rows += [
        {"session": name, "outcome": "not ended", "kind": "", "reason": "planned; it has no status yet"}
        for name in material.results.not_ended
    ]
    return Table(
        name="failures",
        title="Failed, invalid and unfinished sessions",
        caption="None of these is in any number, table of values or figure on this page. Where a newer attempt of a "
        "session failed, the last valid one of the same plan stands.",
        frame=pd.DataFrame(rows),
        empty="Every planned session ended and was valid.",
    )


def versions_table(material: Material) -> Table:
    """Published versions beside those that ran here."""
    ours: dict[str, set[str]] = {}
    for session in material.results.sessions:
        for name, version in session.provenance.get("packages", {}).items():
            ours.setdefault(name, set()).add(version or "not installed")
    runtime: dict[str, str] = dict(published_h200()["software"]["runtime"])
    published: dict[str, str] = {_PUBLISHED_NAMES.get(name, name): version for name, version in runtime.items()}
    published["sglang"] = published_h200()["software"]["optimized"]["sglang_build"]
    rows = [
        {
            "package": name,
            "published": published.get(name),
            "ours": ", ".join(sorted(ours.get(name, ()))) or None,
        }
        for name in dict.fromkeys([*published, *ours])
    ]
    return Table(
        name="versions",
        title="Versions",
        caption="Several versions in one field mean that sessions ran with different ones.",
        frame=pd.DataFrame(rows),
    )


def orders_table(material: Material) -> Table:
    """The seeds by which sessions were put in order."""
    rows = [
        {
            "seed": order.get("seed"),
            "sessions": order.get("sessions"),
            "cells": len({str(session).rpartition("/")[0] for session in order["order"]}),
            "first": ", ".join(map(str, order["order"][:3])),
            "order": " ".join(map(str, order["order"])),
        }
        for order in material.results.orders
    ]
    return Table(
        name="orders",
        title="Order of running",
        caption="Each block holds every cell once, in an order drawn from the seed; two cells go ABBA. The whole order "
        "is in the CSV. Sessions that were there already are not run again.",
        frame=pd.DataFrame(rows),
        headers={
            "seed": "seed",
            "sessions": "sessions of each cell",
            "cells": "cells",
            "first": "the first three",
        }
        if rows
        else {},
        empty="Nothing says in which order these sessions ran: they were run by hand, or imported.",
    )


def provenance_table(material: Material) -> Table:
    """Commit, uncommitted changes and machine of every session."""
    return Table(
        name="provenance",
        title="Provenance",
        caption="`differs` counts files that differed from the commit when the session ran, by digest. Exact commands "
        "are below; the folder of each session holds its whole plan, which runs it again by hand.",
        frame=pd.DataFrame([_provenance(session) for session in material.results.sessions]),
        headers={
            "session": "session",
            "commit": "commit",
            "differs": "differs",
            "measured_code": "code digest",
            "cpu": "processor",
            "cpus": "cores",
            "memory_gib": "memory, GiB",
            "load": "load at start",
            "gpus": "GPUs",
            "clocks": "SM clock least / median / most, MHz",
            "power_w": "median power, W",
            "held_back": "held back by, share of the time",
        },
    )


def simulated_words(labels: dict[str, Any]) -> str:
    """The labels of a plan that keep a value from being held against a published one, in words."""
    return ", ".join(
        f"{name} {labels.get(name, 'unknown')}" for name, real in REAL_LABELS.items() if labels.get(name) not in real
    )


def _expected(expect: dict[str, Any] | None) -> str:
    return f"{expect.get('metric')} {expect.get('direction')}" if expect else ""


def _provenance(session: Session) -> dict[str, Any]:
    code, machine = session.provenance.get("code", {}), session.provenance.get("machine", {})
    changed = code.get("diff_files", [])
    gpus = session.provenance.get("gpus", [])
    load, views = machine.get("load_average"), gpu_views(session.folder, session.client)
    return {
        "session": session.name,
        "commit": (code.get("commit") or "unknown")[:12],
        "differs": f"{len(changed)} files, {str(code.get('diff_sha256'))[:12]}" if changed else "no",
        "diff_sha256": code.get("diff_sha256"),
        "measured_code": session.status.get("measured_code"),
        "cpu": machine.get("cpu"),
        "cpus": machine.get("num_cpus"),
        "memory_gib": machine.get("memory_gib"),
        "load": load[0] if load else None,
        "gpus": _gpus(gpus),
        "driver": ", ".join(sorted({gpu.get("driver_version", "?") for gpu in gpus})),
        "clocks": _each(views, lambda view: " / ".join(f"{clock:,.0f}" for clock in view.sm_clock_mhz or ())),
        "power_w": _each(views, lambda view: "" if view.power_w is None else f"{view.power_w:.0f}"),
        "held_back": _each(
            views, lambda view: ", ".join(f"{name} {share:.0%}" for name, share in view.held_back.items()) or "nothing"
        ),
    }


def _each(views: list[GpuView], text: Callable[[GpuView], str]) -> str | None:
    """Of every GPU, by number where there are several."""
    parts = [f"{view.gpu}: {text(view)}" if len(views) > 1 else text(view) for view in views]
    return "; ".join(parts) or None


def _gpus(gpus: list[dict[str, str]]) -> str:
    names = [gpu.get("name", "GPU") for gpu in gpus]
    driver = sorted({gpu.get("driver_version", "?") for gpu in gpus})
    return f"{len(gpus)} x {', '.join(sorted(set(names)))}, driver {', '.join(driver)}" if gpus else "none"
