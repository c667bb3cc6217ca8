"""A row as runnable scripts, one for each host, and one that starts them through ssh or inside a SLURM allocation.

Knows nothing of engines but their commands. Every word is quoted for the shell; a word with a `$` stays open to it.
Nothing in a script comes from this machine.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from workflows.catalog import Catalog, load_catalog, nearest
from workflows.engines.sglang import Command, ascend_commands, h200_commands
from workflows.engines.sglang_session import PLACEHOLDER
from workflows.errors import CatalogError, NotApplicableError, WorkflowError
from workflows.plan import Plan
from workflows.planner import plan_session
from workflows.resolution import resolve
from workloads.files import write_atomically

PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
GONE = '{ echo "a process has ended; its log in logs/ says why" >&2; exit 1; }'
STOP_ALL = "trap 'code=$?; trap \"\" TERM; kill 0; exit $code' EXIT"
"""Ends every process of a host's script, and keeps the script's own exit code."""
CURL = "curl -sf --noproxy '*'"
STOP_OTHERS = "trap 'kill $(jobs -p) 2> /dev/null || true' EXIT"
EXAMPLE_HOSTS = ("192.0.2.10", "192.0.2.11")


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """One file."""

    name: str
    text: str


def render(row: str, workload: str, testbed_id: str, engine: str, hosts: Sequence[str], placement: str) -> list[Script]:
    """All scripts of a row. Raises WorkflowError with the reason where there is none."""
    if placement not in ("hosts", "srun"):
        raise WorkflowError(f"placement must be hosts or srun, not {placement}")
    catalog = load_catalog()
    testbed = catalog.testbed(testbed_id)
    entry = catalog.row(row)
    resolution = resolve(catalog, entry, testbed_id, engine)
    if resolution.status not in ("runnable", "script_only"):
        raise NotApplicableError(f"{entry.name} does not run on {testbed_id}: {resolution.reason}")
    if testbed.platform == "ascend":
        return _ascend(catalog.launches[entry.row.id], hosts, placement)
    chosen = workload or entry.workloads[0]
    if chosen not in entry.workloads:
        raise CatalogError(f"{entry.name} has no workload {chosen}{nearest(chosen, entry.workloads)}")
    if resolution.engine == "stack":
        if hosts:
            raise WorkflowError("our engine's script runs on the host where it is started: leave --hosts out")
        if placement != "hosts":
            raise WorkflowError("our engine's script is for one host: leave --placement out")
        plan = plan_session(row, chosen, testbed_id=testbed_id, engine=engine, catalog=catalog)
        return [Script("host_a.sh", _own_engine(plan))]
    commands = h200_commands(catalog, entry.name, chosen)
    about = [f"{entry.name} {chosen}: the processes of one host. What begins with /path/to is yours",
             "to fill in, or to export on every host under the name that stands before it.",
             *_environments(catalog, commands)]  # fmt: skip
    return _h200(commands, hosts, placement, about)


def emit(scripts: Sequence[Script], folder: Path | None, console: Console) -> None:
    """Write the scripts into a folder, or print them one after the other."""
    for script in scripts:
        if folder:
            write_atomically(folder / script.name, lambda path, text=script.text: path.write_text(text))  # type: ignore[misc]
            (folder / script.name).chmod(0o755)
            console.print(str(folder / script.name), highlight=False)
        else:
            console.file.write(f"# ---- {script.name}\n{script.text}\n")


def quote(word: str) -> str:
    """One shell word that means `word`, or what its `$` expressions come to."""
    if PLAIN.fullmatch(word):
        return word
    if "$" in word:
        return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`") + '"'
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _environments(catalog: Catalog, commands: Sequence[Command]) -> Iterator[str]:
    """How each engine's environment that these commands need is made, once, on every host."""
    engine = catalog.engines["sglang"]
    for build, variable in engine.environments.items():
        if any(command.environment == variable for command in commands):
            yield f"{variable} is the environment of {engine.builds[build]}; without it PATH decides. Made once by:"
            yield from (f"  {line}" for line in engine.install[build])


def _h200(commands: Sequence[Command], hosts: Sequence[str], placement: str, about: Sequence[str]) -> list[Script]:
    """Scripts for the hosts that the commands need, which may be fewer than the testbed has."""
    num_hosts = 1 + max(command.host for command in commands)
    addresses = _as_many(hosts, num_hosts) or list(EXAMPLE_HOSTS[:num_hosts])
    folders = {v: k for command in commands for k, v in command.env.items() if v.startswith(PLACEHOLDER)}
    names = [f"host_{'ab'[index]}.sh" for index in range(num_hosts)]
    nodes = {f"NODE_{'AB'[index]}": address for index, address in enumerate(addresses)} if num_hosts > 1 else {}
    scripts = [
        Script(name, _host_script([c for c in commands if c.host == index], nodes, about, folders))
        for index, name in enumerate(names)
    ]
    launched = num_hosts > 1 or hosts
    return [*scripts, Script("launch.sh", _launcher(names, addresses, placement))] if launched else scripts


def _as_many(hosts: Sequence[str], num_hosts: int) -> list[str]:
    """The given addresses, or none where none was given. Raises WorkflowError for any other number of them."""
    addresses = list(_addresses(hosts))
    if hosts and len(addresses) != num_hosts:
        raise WorkflowError(
            f"these scripts need {num_hosts} {'host' if num_hosts == 1 else 'hosts'} and --hosts gave "
            f"{len(addresses)} ({'; '.join(addresses) or 'an empty file'}): repeat --hosts for each, or name a file"
        )
    if twice := [address for address, count in Counter(addresses).items() if count > 1]:
        raise WorkflowError(f"--hosts names {twice[0]} twice; each script is for a host of its own")
    return addresses


def _addresses(hosts: Sequence[str]) -> Iterator[str]:
    """Addresses as given, commas between them; a file stands for those in it, one a line, `#` for a comment."""
    for host in hosts:
        if not Path(host).is_file():
            yield from (address for address in host.split(",") if address)
            continue
        for line in Path(host).read_text(encoding="utf-8").splitlines():
            if address := line.partition("#")[0].strip():
                yield address


def _host_script(
    commands: Sequence[Command], nodes: Mapping[str, str], about: Sequence[str], folders: Mapping[str, str]
) -> str:
    lines = ["#!/usr/bin/env bash", *(f"# {line}" for line in about)]
    lines += ["set -euo pipefail", "mkdir -p logs"]
    lines += _exported(nodes)
    lines += [STOP_ALL, ""]
    router = f"http://{'$NODE_A' if nodes else '127.0.0.1'}:8090"
    started = 0
    for command in commands:
        if command.name == "bench":
            lines += ["# Every prefill and decode cache is empty before the measured run.",
                      f'{CURL} -X POST "{router}/flush_cache"', ""]  # fmt: skip
        lines += [_subshell(command, background=command.name != "bench", folders=folders), ""]
        started += command.name != "bench"
        if command.name == "router":
            lines += [_until(f"{router}/v1/models", started), ""]
    if commands[-1].name != "bench":
        lines.append("wait -n")
    return "\n".join(lines) + "\n"


def _exported(nodes: Mapping[str, str]) -> Iterator[str]:
    """The hosts' addresses; launch.sh inside an allocation knows better."""
    return (f'export {key}="${{{key}:-{value}}}"' for key, value in nodes.items())


def _until(url: str, num_processes: int) -> str:
    """Waits for an answer there as long as all processes of the host's script run."""
    alive = f'[ "$(jobs -rp | wc -l)" -eq {num_processes} ] || {GONE}'
    return f'until {CURL} "{url}" > /dev/null; do {alive}; sleep 5; done'


def _subshell(command: Command, *, background: bool, folders: Mapping[str, str] | None = None) -> str:
    """One process. `folders`: what begins with /path/to -> the variable that may name another in its place."""
    body = [f"unset {name}" for name in command.unset]
    if command.environment:
        name = command.environment.removeprefix("$")
        body.append(f'export PATH="${{{name}:+${name}/bin:}}$PATH"')
    body += [_export(key, value) for key, value in command.env.items()]
    words = " ".join(quote(_open(folders or {}, word)) for word in command.argv)
    redirect = f" > logs/{command.name}.log 2>&1" if background else f" | tee logs/{command.name}.log"
    body.append(("exec " if background else "") + words + redirect)
    inner = "\n".join(f"  {line}" for line in body)
    return f"(\n{inner}\n)" + (" &" if background else "")


def _export(key: str, value: str) -> str:
    """An assignment, but for a folder of the user's that is exported already."""
    return f"export {key}={quote(_open({value: key} if value.startswith(PLACEHOLDER) else {}, value))}"


def _open(folders: Mapping[str, str], word: str) -> str:
    return f"${{{folders[word]}:-{word}}}" if word in folders else word


def _launcher(names: Sequence[str], addresses: Sequence[str], placement: str) -> str:
    """Starts every host's script; when one of them ends, so do the others."""
    lines = ["#!/usr/bin/env bash", "set -euo pipefail", 'cd "$(dirname "$0")"', STOP_OTHERS]
    if placement == "srun":
        first = names[0]
        lines += [
            f"# Inside one allocation; from this folder: sbatch --nodes={len(names)} --exclusive launch.sh",
            "# (sbatch runs a copy of this file that lies elsewhere.)",
            f'[ -e {first} ] || cd "${{SLURM_SUBMIT_DIR:-.}}"',
            f'[ -e {first} ] || {{ echo "no {first} in $PWD: run sbatch in the folder of launch.sh" >&2; exit 1; }}',
        ]
        lines.append('mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")')
        for index, name in enumerate(names):
            node = name.removeprefix("host_").removesuffix(".sh").upper()
            address = f"getent ahostsv4 \"${{NODES[{index}]}}\" | awk 'NR == 1 {{ print $1 }}'"
            lines.append(f'NODE_{node}="$({address})" && export NODE_{node}')
        for index, name in enumerate(names):
            where = f'--nodes=1 --ntasks=1 --nodelist="${{NODES[{index}]}}" --kill-on-bad-exit=1'
            lines.append(f"srun {where} bash {name} &")
    else:
        if set(addresses) <= set(EXAMPLE_HOSTS) or addresses[0].startswith("<"):
            lines.append(
                "# These addresses are not yours yet: np1d plan ... --hosts A --hosts B writes those of your hosts."
            )
        for name, address in zip(names, addresses, strict=True):
            # In base64, because the login shell over there need not be a bash, nor read what a bash quotes.
            lines.append(f"script=\"$(base64 < {name} | tr -d '\\n')\"")
            lines.append(f'ssh -tt {quote(address)} "bash -c \\"\\$(echo $script | base64 -d)\\"" < /dev/null &')
    lines.append("wait -n")
    return "\n".join(lines) + "\n"


def _ascend(scenario: Mapping[str, Any], hosts: Sequence[str], placement: str) -> list[Script]:
    """Scripts of a scenario. Where neither `hosts` nor an allocation gives addresses, its placeholders stay."""
    places = [place for array in scenario["topology"]["ip_placeholders"].values() for place in array]
    addresses = _as_many(hosts, len(places)) or places
    nodes = {f"NODE_{host}": address for host, address in enumerate(addresses)} if hosts or placement == "srun" else {}
    commands = list(ascend_commands(scenario))
    if nodes:
        first = _first_hosts(scenario["topology"])
        commands = [
            dataclasses.replace(command, arguments=tuple(_filled(word, first) for word in command.arguments))
            for command in commands
        ]
    scripts = [
        Script(f"host_{host}.sh", _ascend_host(scenario, [c for c in commands if c.host == host], nodes))
        for host in range(len(places))
    ]
    names = [script.name for script in scripts]
    return [*scripts, Script("launch.sh", _launcher(names, addresses, placement))]


def _first_hosts(topology: Mapping[str, Any]) -> dict[str, str]:
    """The router's words for an instance -> its first host: they count instances, the lists of addresses hosts."""
    found = {}
    before = 0
    for role in ("prefill", "decode"):
        part = topology.get(role, {"instances": 0, "nodes_per_instance": 0, "nodes": 0})
        for index in range(part["instances"]):
            found[f"<your {role} ip{index + 1}>"] = f"$NODE_{before + index * part['nodes_per_instance']}"
        found[f"<your {role} ip>"] = f"$NODE_{before}"
        before += part["nodes"]
    return found


def _filled(word: str, values: Mapping[str, str]) -> str:
    for place, value in values.items():
        word = word.replace(place, value)
    return word


def _ascend_host(scenario: Mapping[str, Any], commands: Sequence[Command], nodes: Mapping[str, str]) -> str:
    lines = ["#!/usr/bin/env bash", *_ascend_setup(scenario, nodes), STOP_ALL, ""]
    started = 0
    for command in commands:
        if command.name == "router" or (command.name == "benchmark" and not scenario["router"]):
            lines += ["# The waiting is ours, not published: every instance answers before it is asked for more.",
                      *(_until(url, started) for url in _instances(scenario)), ""]  # fmt: skip
        if command.name == "benchmark" and "mixed" in scenario:
            lines += ["# As published, the server listens on its node's address and the benchmark asks 127.0.0.1;",
                      "# where the two do not meet, give the benchmark the server's --host."]  # fmt: skip
        lines += [_subshell(command, background=command.name != "benchmark"), ""]
        started += command.name != "benchmark"
        if command.name == "router":
            flags = scenario["router"]["flags"]
            lines += [_until(f"http://{flags['--host']}:{flags['--port']}/v1/models", started), ""]
    if commands[-1].name != "benchmark":
        lines.append("wait -n")
    return "\n".join(lines) + "\n"


def _ascend_setup(scenario: Mapping[str, Any], nodes: Mapping[str, str]) -> Iterator[str]:
    """What precedes a host's processes."""
    setup = scenario["host_setup"]
    variables = {**scenario["shell_vars"], **scenario["common_env"]}
    yield f"# {scenario['title']}: the processes of one host. What stands in <> is yours to fill in, and so is"
    yield from (f"# {value}, unless {key} is exported." for key, value in scenario["shell_vars"].items())
    yield from (f"# Note: {note}." for note in scenario["notes"])
    yield "mkdir -p logs"
    yield "# Settings of the host, as published: they need root, and go on where they fail. Then the vendor's files,"
    yield "# which are not written for a strict shell."
    yield from setup["commands"]
    yield f"ls {' '.join(setup['source'])} > /dev/null || exit 1"
    yield from (f"source {path}" for path in setup["source"])
    yield "set -euo pipefail"
    yield from (f"unset {name}" for name in setup["env_unset"])
    yield from _exported(nodes)
    places = [place for array in scenario["topology"]["ip_placeholders"].values() for place in array]
    known = dict(zip(places, (f"${name}" for name in nodes), strict=True)) if nodes else {}
    for name, array in scenario["topology"]["ip_placeholders"].items():
        yield f"{name}=({' '.join(quote(_filled(place, known)) for place in array)})"
    yield from (_export(key, _filled(str(value), known)) for key, value in variables.items())


def _instances(scenario: Mapping[str, Any]) -> Iterator[str]:
    """Where each instance says that it is ready: on its first host."""
    for role in ("mixed", "prefill", "decode"):
        if role in scenario:
            flags, part = scenario[role]["flags"], scenario["topology"][role]
            for index in range(0, part["nodes"], part["nodes_per_instance"]):
                yield f"http://{flags['--host'].replace('$i', str(index))}:{flags['--port']}/health"


def _own_engine(plan: Plan) -> str:
    """Our own engine on one host, with the ports of the plan's first block."""
    import json

    ports: dict[str, int] = {}
    for process in plan.processes:
        for name in process.ports:
            ports[name] = plan.limits.port_base + len(ports)

    def fill(word: str) -> str:
        for name, port in ports.items():
            word = word.replace(f"{{port:{name}}}", str(port))
        return word.replace("{python}", "python").replace("{dir}", "run")

    lines = ["#!/usr/bin/env bash", f"# {plan.cell.name} on {plan.cell.testbed}: run it in the repository.",
             "set -euo pipefail", "mkdir -p run", STOP_ALL, ""]  # fmt: skip
    if plan.model["build"]:
        build = " ".join(quote(word) for word in ("python", *plan.model["build"]))
        lines.append(f"[ -e {quote(plan.model['path'])}/config.json ] || {build}")
    for process in plan.processes:
        for name, content in process.files.items():
            lines += [f"cat > run/{name} <<'JSON'", json.dumps(content, indent=1), "JSON"]
        env = "".join(f"{key}={quote(value)} " for key, value in process.env.items())
        lines.append(f"{env}{' '.join(quote(fill(word)) for word in process.command)} > run/{process.name}.log 2>&1 &")
    lines += ["cat > run/workload.json <<'JSON'", json.dumps(plan.client.workload, indent=1), "JSON"]
    lines += [" ".join(quote(fill(word)) for word in plan.client.command), "python -m workloads.metrics run"]
    return "\n".join(lines) + "\n"
