"""A session's folder as the supervisor and the metrics leave it, without anything having run."""

from pathlib import Path
from typing import Any

from workflows.identity import measured_code
from workflows.plan import Plan
from workloads.files import write_json


def session(folder: Path, plan: Plan, *, started: float = 1.0, status: str = "ok", verdict: str = "VALID",
            code: str = "") -> Path:  # fmt: skip
    """Write it; its values are of no machine."""
    kind = None if status == "ok" else "server_died"
    body: dict[str, Any] = {"status": status, "kind": kind, "reason": "it died", "cell": plan.cell.model_dump(),
                            "key": plan.key, "started_unix_s": started,
                            "measured_code": code or measured_code("stack", "cpu")}  # fmt: skip
    metrics = {"validity": {"verdict": verdict, "reasons": []}, "metric": plan.metric, "metrics": {plan.metric: 10.0}}
    write_json(folder / "plan.json", plan.to_json())
    write_json(folder / "status.json", body)
    write_json(folder / "metrics.json", metrics)
    (folder / "requests.parquet").write_text("records")
    return folder
