"""Runs one session with a state folder of its own: `run_session.py PLAN OUT STATE`."""

import sys
from pathlib import Path

from workflows.plan import read_plan
from workflows.session import run_session

plan, out, state = (Path(argument) for argument in sys.argv[1:])
state.mkdir(parents=True, exist_ok=True)
status = run_session(read_plan(plan), out, state=state, wait_s=30)
sys.exit(0 if status["status"] == "ok" else 130 if status["kind"] == "interrupted" else 1)
