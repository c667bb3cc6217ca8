"""The published engine's commands, token for token as printed: `0.90` stays `0.90`, order stays the published one.

Knows the launch files and a row's column, nothing of how commands reach a host. A value with a `$` is left to the shell
of the script, where the variables before it give it its meaning.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from workflows.catalog import Catalog, sglang_column
from workflows.errors import NotApplicableError
from workflows.scaling import Shape


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One program of a script."""

    name: str
    host: int
    """Index of the host that runs it."""
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    env: dict[str, str]
    unset: tuple[str, ...] = ()
    role: str = ""
    environment: str = ""
    """Variable of the user's folder that holds the program."""

    @property
    def argv(self) -> tuple[str, ...]:
        """Program and arguments."""
        return (*self.program, *self.arguments)


def arguments(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags as tokens: `true` is a bare flag, null leaves it out, a list of lists repeats the flag."""
    tokens: list[str] = []
    for flag, value in flags.items():
        if value is None:
            continue
        if value is True:
            tokens.append(flag)
        elif isinstance(value, list) and value and isinstance(value[0], list):
            for group in value:
                tokens += [flag, *map(str, group)]
        elif isinstance(value, list):
            tokens += [flag, *map(str, value)]
        else:
            tokens += [flag, str(value)]
    return tuple(tokens)


def h200_commands(catalog: Catalog, name: str, workload: str) -> list[Command]:
    """Servers, router and load client of a row, on as many hosts of eight H200s as its published instances need."""
    entry = catalog.row(name)
    columns = {half: sglang_column(catalog, name, half) for half in ("prefill", "decode")}
    for half, column in columns.items():
        if column["none"]:
            raise NotApplicableError(f"{name} has no launch of the published engine ({half}): {column['none']}")
    router = catalog.launches["router_3p1d" if entry.suite.prefill == 3 else "router_1p1d"]
    places = router.get("placement") or _one_host_places(catalog.launches[columns["decode"]["launch"]])
    alone = len({place["node"] for place in places}) == 1
    servers = [_server(catalog, columns, place, alone=alone) for place in places]
    decode_port = next(str(place["port"]) for place in places if place["role"] == "D")
    environment = servers[-1].environment
    front = dataclasses.replace(_router(router, decode_port), environment=environment)
    published = catalog.workloads[workload]
    shape = Shape(
        published.input_len, published.output_len, published.shared_ratio, catalog.concurrency(name, workload)
    )
    bench = dataclasses.replace(_benchmark(catalog, workload, shape, router), environment=environment)
    return [*servers, front, bench]


def _one_host_places(decode_launch: Mapping[str, Any]) -> list[dict[str, Any]]:
    port = decode_launch["decode"]["flags"]["--port"]
    if str(port).startswith("$"):
        port = decode_launch["decode"]["env"][str(port)[1:]]
    return [
        {"role": "P0", "node": "A", "gpus": "0-3", "port": 31000, "bootstrap_port": 8998, "nccl_port": 29500},
        {"role": "D", "node": "A", "gpus": "4-7", "port": int(port), "nccl_port": 29501},
    ]


def _server(catalog: Catalog, columns: Mapping[str, Any], place: Mapping[str, Any], *, alone: bool) -> Command:
    half = "decode" if place["role"] == "D" else "prefill"
    column = columns[half]
    launch = catalog.launches[column["launch"]]
    part = launch[half]
    flags = _merged(part["flags"], column["flags"])
    env = {**launch["shared_env"], **part.get("env", {}), **column["env"]}
    if alone:
        env |= launch.get("single_node_env", {})
    else:
        for variable in ("UCX_NET_DEVICES", "UCX_TLS"):
            env.pop(variable, None)
        flags, env = _placed(flags, env, place, half)
        env |= place.get("env", {})
    return Command(
        name=place["role"].lower(),
        host="AB".index(place["node"]),
        program=tuple(part["program"].split()),
        arguments=arguments(flags),
        env={key: str(value) for key, value in env.items() if value is not None},
        unset=(*launch.get("shared_env_unset", ()), *part.get("env_unset", ())),
        role=half,
        environment=catalog.engines["sglang"].environments[launch["engine_build"]],
    )


def _merged(flags: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    return {**flags, **changes}


def _placed(
    flags: dict[str, Any], env: dict[str, Any], place: Mapping[str, Any], half: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Flags and environment of one instance of several: its node's address, ports and GPUs."""
    letter, host = half[0].upper(), f"$NODE_{place['node']}"
    first, last = (int(number) for number in place["gpus"].split("-"))
    env["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(first, last + 1))
    named = {
        f"{letter}_HOST": host,
        f"{letter}_PORT": place["port"],
        f"{letter}_NCCL_PORT": place["nccl_port"],
        "BOOTSTRAP_PORT": place.get("bootstrap_port"),
    }
    literal = {
        "--host": host,
        "--port": place["port"],
        "--nccl-port": place["nccl_port"],
        "--disaggregation-bootstrap-port": place.get("bootstrap_port"),
    }
    for variable, value in named.items():
        if variable in env:
            env[variable] = value
    for flag, value in literal.items():
        if flag in flags and not str(flags[flag]).startswith("$"):
            flags[flag] = value
    return flags, env


def _router(launch: Mapping[str, Any], decode_port: str) -> Command:
    flags = dict(launch["flags"])
    if "placement" not in launch:
        flags["--decode"] = f"http://127.0.0.1:{decode_port}"
    env = {key: value for key, value in launch["env"].items() if not key.startswith("NODE_")}
    return Command("router", 0, tuple(launch["program"].split()), arguments(flags), env)


def _benchmark(catalog: Catalog, workload: str, shape: Shape, router: Mapping[str, Any]) -> Command:
    launch = catalog.launches["bench_gsp"]
    own = catalog.launches["bench_workloads"].get({"sp99_9": "sp99_9_decode"}.get(workload, workload), {})
    lengths = {f"--{key.replace('_', '-')}": value for key, value in own.items() if key.startswith("gsp_")}
    flags = {
        **launch["flags"],
        **lengths,
        "--max-concurrency": shape.concurrency,
        "--output-file": f"benchmark_{workload}.jsonl",
    }
    if workload == "sp93_75":
        flags["--output-file"] = launch["flags"]["--output-file"]
    host = "$NODE_A" if "placement" in router else "127.0.0.1"
    env = {**launch["env"], "BENCH_HOST": host}
    return Command("bench", 0, tuple(launch["program"].split()), arguments(flags), env)


def ascend_commands(scenario: Mapping[str, Any]) -> Iterable[Command]:
    """Every process of one published Ascend scenario, host by host; `$i` is the host's index in its role's list."""
    host = 0
    for role in ("mixed", "prefill", "decode"):
        if role not in scenario:
            continue
        part = scenario[role]
        topology = scenario["topology"][role]
        for index in range(topology["nodes"]):
            yield Command(
                name=f"{role}{index}",
                host=host,
                program=tuple(part["program"].split()),
                arguments=arguments(part["flags"]),
                env={"i": str(index), **{key: str(value) for key, value in part.get("env", {}).items()}},
                role=role,
            )
            host += 1
    for name in ("router", "benchmark"):
        if part := scenario[name]:
            yield Command(name, 0, tuple(part["program"].split()), arguments(part["flags"]), {})
