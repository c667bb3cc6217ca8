"""Runs one workload with our client and with a peer against the same server, alternately, and shows both.

The load has the peers' shape: slots are filled at once and drained at the end. Runs alternate (ours, theirs, theirs,
ours) so that a drift of the machine does not look like a difference of the tools.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workloads.client import Target, run_workload
from workloads.crosscheck.peers import PEERS, Ask, PeerNumbers
from workloads.metrics import write_session_metrics
from workloads.spec import ClosedLoad, SpecError, Workload

CROSSCHECK_SCHEMA = "crosscheck/1"
COMPARED = ("output_tok_s", "ttft_mean_s", "tpot_mean_ms")
_TIMEOUT_S = 3600


def crosscheck(
    workload: Workload,
    *,
    peer: str,
    target: Target,
    tokenizer: str,
    out: Path,
    launcher: Path | None = None,
    order: str = "abba",
) -> dict[str, Any]:
    """Measure with both; `order` has a letter a run, `a` ours and `b` theirs. Raises SpecError, NotInstalledError."""
    shaped = peer_shaped(workload)
    if not Path(tokenizer).is_dir():
        raise SpecError(f"there is no tokenizer folder {tokenizer}; {peer} needs the model's")
    if any((out / f"{number}-{who}").exists() for number, who in enumerate(order)):
        raise SpecError(f"{out} already holds a comparison; choose an empty folder")
    PEERS[peer].command(shaped, Ask(url=target.url, tokenizer=tokenizer, out=out, launcher=launcher))  # or says why not
    ours: list[PeerNumbers] = []
    theirs: list[PeerNumbers] = []
    for number, who in enumerate(order):
        folder = out / f"{number}-{who}"
        if who == "a":
            ours.append(_run_ours(shaped, target, folder, number))
        else:
            ask = Ask(url=target.url, tokenizer=tokenizer, out=folder / "result.jsonl", launcher=launcher)
            theirs.append(_run_theirs(shaped, peer, ask))
    return {
        "schema": CROSSCHECK_SCHEMA,
        "workload": workload.name,
        "peer": peer,
        "order": order,
        "values": {key: _both(key, ours, theirs) for key in COMPARED},
        "num_requests": {"ours": [n.num_requests for n in ours], "theirs": [n.num_requests for n in theirs]},
    }


def peer_shaped(workload: Workload) -> Workload:
    """The workload as the peers drive it: one pass, warm-up apart, no refilling at the end. Raises SpecError."""
    if not isinstance(workload.load, ClosedLoad):
        raise SpecError("cross-checks use load closed")
    load = workload.load.model_copy(update={"handover": False, "keep_full": False})
    limits = workload.limits.model_copy(update={"min_concurrency_share": 0.0})
    cache = workload.cache.model_copy(update={"intent": "natural", "band": (0.0, 1.0)})
    return workload.model_copy(update={"load": load, "limits": limits, "cache": cache, "passes": 1})


def _run_ours(workload: Workload, target: Target, folder: Path, number: int) -> PeerNumbers:
    identity = workload.identity.model_copy(update={"session": 1000 + number})
    run_workload(workload.model_copy(update={"identity": identity}), target, folder, progress=False)
    body = write_session_metrics(folder)
    if "metrics" not in body:
        raise SpecError(f"our run is INVALID: {'; '.join(body['validity']['reasons'])}")
    values = body["metrics"]
    return PeerNumbers(
        num_requests=values["num_requests"],
        output_tok_s=values["output_tok_s"],
        ttft_mean_s=values["ttft_mean_s"],
        tpot_mean_ms=values["tpot_mean_ms"],
        duration_s=values["duration_s"],
    )


def _run_theirs(workload: Workload, peer: str, ask: Ask) -> PeerNumbers:
    ask.out.parent.mkdir(parents=True)
    command = PEERS[peer].command(workload, ask)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    (ask.out.parent / "log.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        tail = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise SpecError(f"{peer} failed with {done.returncode}: {' '.join(tail)} (see {ask.out.parent / 'log.txt'})")
    return PEERS[peer].read(ask.out)


def _both(key: str, ours: Sequence[PeerNumbers], theirs: Sequence[PeerNumbers]) -> dict[str, Any]:
    a = [value for n in ours if (value := getattr(n, key)) is not None]
    b = [value for n in theirs if (value := getattr(n, key)) is not None]
    difference = float(np.mean(a) / np.mean(b) - 1) if a and b and np.mean(b) else None
    return {"ours": a, "theirs": b, "ours_over_theirs_minus_1": difference}
