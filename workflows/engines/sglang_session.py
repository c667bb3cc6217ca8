"""The published engine under our supervisor: its printed launches on one host, as processes of a plan.

Every flag stays as printed but the ports, which are the session's. The user's own folders, of weights and of the
engine's environments, stay variables (`$MODEL_PATH`, `$SGLANG_BASELINE`) until a session fills them in. The router is
ours to start, as for every engine; the load is driven by our client.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

from workflows.catalog import Catalog
from workflows.engines.router import router_process
from workflows.engines.sglang import Command, h200_commands
from workflows.plan import ProcessPlan, Ready

PORTS = {"--port": "", "--nccl-port": "_nccl", "--disaggregation-bootstrap-port": "_bootstrap"}
"""Flag of a port -> what its name in the plan ends with."""
PLACEHOLDER = "/path/to/"
"""How a launch's variable for a folder of the user begins."""
_VARIABLE = re.compile(r"\$([A-Z][A-Z0-9_]*)")


def session_processes(catalog: Catalog, row: str) -> tuple[ProcessPlan, ...]:
    """Prefill, decode and router of a row on one host. Raises NotApplicableError for a row without a launch."""
    entry = catalog.row(row)
    workload = next(iter(catalog.workloads))  # only the printed benchmark depends on it
    commands = [command for command in h200_commands(catalog, row, workload) if command.role]
    servers = tuple(_server(command) for command in commands)
    prefill, decode = ([s.name for s in servers if s.role == role] for role in ("prefill", "decode"))
    return (*servers, router_process(entry.suite.router, prefill, decode, has_bootstrap_ports=True))


def _server(command: Command) -> ProcessPlan:
    role: Literal["prefill", "decode"] = "prefill" if command.role == "prefill" else "decode"
    name = command.name if role == "prefill" else f"{command.name}0"
    known = {key: value for key, value in command.env.items() if not value.startswith(PLACEHOLDER)}
    in_flags = set(_VARIABLE.findall(" ".join(command.arguments)))
    words = [_resolved(word, known) for word in command.arguments]
    unset = [word for variable in command.unset for word in ("-u", variable)]
    env = {key: _resolved(value, known) for key, value in known.items() if key not in in_flags}
    ports = {flag: f"{name}{end}" for flag, end in PORTS.items() if flag in words}
    return ProcessPlan(
        name=name,
        role=role,
        command=(
            *(("env", *unset) if unset else ()),
            f"{command.environment}/bin/{command.program[0]}", *command.program[1:], *_with_ports(words, ports),
        ),
        env=env,
        ports=tuple(ports.values()),
        ready=Ready(path="/health"),
        gpus=tuple(int(index) for index in env["CUDA_VISIBLE_DEVICES"].split(",")),
    )  # fmt: skip


def _resolved(word: str, known: Mapping[str, str]) -> str:
    """A word as the launch's shell would pass it on, but for folders that only the user knows."""
    while True:
        filled = _VARIABLE.sub(lambda found: known.get(found[1], found[0]), word)
        if filled == word:
            return word
        word = filled


def _with_ports(words: list[str], ports: Mapping[str, str]) -> Iterator[str]:
    for before, word in zip(["", *words], words, strict=False):
        yield f"{{port:{ports[before]}}}" if before in ports else word
