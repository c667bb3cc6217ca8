"""Which GPUs of this host a session takes.

A plan counts its GPUs from 0. Where the user's CUDA_VISIBLE_DEVICES lists some, the plan's i-th is the i-th of them, so
that a session for one GPU runs beside other work on a shared host.
"""

import os
from collections.abc import Iterable, Mapping, Sequence

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
    if planned and (needed := max(planned) + 1) > len(shown):
        words = (
            f"the session needs {needed} GPU{'s' * (needed > 1)} and {VISIBLE}={environ[VISIBLE]} shows {len(shown)}"
        )
        raise SessionError("no_gpu", f"{words}; list more, or unset {VISIBLE}")
    return [shown[index] for index in planned]


def check_there(there: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """`there` are the UUIDs of this host's GPUs by index. Raises SessionError when the user shows one that is not."""
    shown = [name for name in (part.strip() for part in environ.get(VISIBLE, "").split(",")) if name]
    strange = [name for name in shown if not _is_one_of(there, name)]
    if strange and there:
        has = "GPU 0" if len(there) == 1 else f"GPUs 0 to {len(there) - 1}"
        names = f"{VISIBLE}={environ[VISIBLE]} names {' and '.join(strange)}"
        raise SessionError("no_gpu", f"{names}, and this machine has {has}; name those to use, or unset {VISIBLE}")


def _is_one_of(there: Sequence[str], name: str) -> bool:
    """By index or the beginning of a UUID, as CUDA takes them. Parts of a GPU (MIG) are CUDA's to judge."""
    if name.isdecimal():
        return int(name) < len(there)
    return name.startswith("MIG-") or (name.startswith("GPU-") and any(uuid.startswith(name) for uuid in there))


def on_this_host(env: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """A planned process's environment, its GPUs named as this host names them. Raises SessionError as `host_gpus`."""
    if VISIBLE not in env:
        return dict(env)
    planned = [int(index) for index in env[VISIBLE].split(",") if index]
    return {**env, VISIBLE: ",".join(host_gpus(planned, environ)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
