"""Which GPUs of this host a session takes.

A plan counts its GPUs from 0. Where the user's CUDA_VISIBLE_DEVICES lists some, the plan's i-th is the i-th of them, so
that a session for one GPU runs beside other work on a shared host.
"""

import os
from collections.abc import Iterable, Mapping

from workflows.errors import SessionError
from workflows.plan import Plan

VISIBLE = "CUDA_VISIBLE_DEVICES"


def planned_gpus(plan: Plan) -> list[int]:
    """Every GPU of a plan's servers and client, counted as the plan counts."""
    return sorted({index for process in plan.processes for index in process.gpus} | set(plan.client.gpus))


def host_gpus(planned: Iterable[int], environ: Mapping[str, str] = os.environ) -> list[str]:
    """The same GPUs as this host names them, by index or UUID. Raises SessionError when the user shows too few."""
    planned = list(planned)
    if VISIBLE not in environ:
        return [str(index) for index in planned]
    shown = [name for name in (part.strip() for part in environ[VISIBLE].split(",")) if name]
    if planned and max(planned) >= len(shown):
        raise SessionError(
            "no_gpu",
            f"the session needs {max(planned) + 1} GPUs and {VISIBLE}={environ[VISIBLE]} shows {len(shown)}; list more",
        )
    return [shown[index] for index in planned]


def on_this_host(env: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A planned process's environment, its GPUs named as this host names them. Raises SessionError as `host_gpus`."""
    if VISIBLE not in env:
        return dict(env)
    planned = [int(index) for index in env[VISIBLE].split(",") if index]
    return {**env, VISIBLE: ",".join(host_gpus(planned, environ)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
