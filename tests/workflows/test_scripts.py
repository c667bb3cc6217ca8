"""The published launches come out token for token, as scripts that a shell accepts."""

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from workflows.catalog import Catalog, load_catalog
from workflows.engines.sglang import Command, arguments, ascend_commands, h200_commands
from workflows.errors import NotApplicableError, WorkflowError
from workflows.resolution import resolve
from workflows.schema import CONFIG_FOLDER
from workflows.scripts import quote, render

ASCEND = sorted(yaml.safe_load((CONFIG_FOLDER / "launches_ascend.yaml").read_text()))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def by_name(commands: list[Command]) -> dict[str, Command]:
    return {command.name: command for command in commands}


def shell_words(script: str, program: str) -> list[list[str]]:
    """Words of every line that runs the program, as a shell would split them without expanding anything."""
    found = []
    for line in script.splitlines():
        body = line.strip().removeprefix("exec ")
        if body.startswith(program):
            words = shlex.split(body.split(" > logs/")[0].split(" | tee ")[0])
            found.append(words)
    return found


def expected_tokens(flags: Mapping[str, Any]) -> list[str]:
    return list(arguments(flags))


def test_the_decode_baseline_is_the_printed_launch(catalog: Catalog) -> None:
    commands = by_name(h200_commands(catalog, "decode/baseline", "sp99_9"))
    launch = catalog.launches["baseline_1p1d"]
    for name, half in (("p0", "prefill"), ("d", "decode")):
        assert list(commands[name].arguments) == expected_tokens(launch[half]["flags"])
        assert commands[name].program == ("sglang", "serve")
    assert "0.90" in commands["d"].arguments, "a printed 0.90 stays 0.90"
    assert commands["d"].env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


def test_the_final_row_is_the_printed_launch(catalog: Catalog) -> None:
    commands = by_name(h200_commands(catalog, "decode/dflash2_tuned_moe_dsa_partial", "sp99_9"))
    launch = catalog.launches["optimized_1p1d"]
    for name, half in (("p0", "prefill"), ("d", "decode")):
        assert list(commands[name].arguments) == expected_tokens(launch[half]["flags"])
    assert commands["p0"].env["SGLANG_CP_KDA_ASYNC_TP"] == "1"
    assert commands["p0"].env["UCX_NET_DEVICES"] == "lo"
    assert "SGLANG_CP_KDA_ASYNC_TP" in commands["d"].unset
    graphs = commands["d"].arguments.index("--cuda-graph-bs-decode")
    assert commands["d"].arguments[graphs + 1 : graphs + 4] == ("1", "2", "4")


def test_the_prefill_ladder_ends_in_the_printed_prefill_launch_but_for_the_drafter(catalog: Catalog) -> None:
    final = by_name(h200_commands(catalog, "prefill/fp8_comm_fusion_scheduling", "prefill_only"))["p0"]
    printed = catalog.launches["optimized_1p1d"]["prefill"]
    without_drafter = {k: v for k, v in printed["flags"].items() if not k.startswith("--speculative")}
    assert sorted(final.arguments) == sorted(expected_tokens(without_drafter))
    assert {k: v for k, v in final.env.items() if k in printed["env"]} == printed["env"]


def test_three_prefill_instances_stand_on_two_nodes_as_printed(catalog: Catalog) -> None:
    commands = h200_commands(catalog, "integrated/optimized", "sp93_75")
    assert [(c.name, c.host) for c in commands] == [
        ("p0", 0), ("p1", 0), ("p2", 1), ("d", 1), ("router", 0), ("bench", 0),
    ]  # fmt: skip
    named = by_name(commands)
    assert named["p1"].env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    assert (named["p1"].env["P_PORT"], named["p1"].env["BOOTSTRAP_PORT"]) == ("31001", "8999")
    assert named["p2"].env["UCX_TLS"] == "tcp,cuda_copy,cuda_ipc,self,sm"
    assert "UCX_TLS" not in named["p0"].env, "across nodes UCX chooses"
    assert list(named["router"].arguments) == expected_tokens(catalog.launches["router_3p1d"]["flags"])


def test_the_benchmark_is_the_printed_command(catalog: Catalog) -> None:
    bench = by_name(h200_commands(catalog, "integrated/optimized", "sp93_75"))["bench"]
    assert list(bench.arguments) == expected_tokens(catalog.launches["bench_gsp"]["flags"])


def test_the_baseline_of_the_integrated_rows_takes_its_nodes_ports(catalog: Catalog) -> None:
    named = by_name(h200_commands(catalog, "integrated/baseline", "sp0"))
    decode = named["d"].arguments
    assert decode[decode.index("--port") + 1] == "31500"
    assert decode[decode.index("--host") + 1] == "$NODE_B"
    assert decode[decode.index("--ep-size") + 1] == "4"


@pytest.mark.parametrize("scenario", ASCEND)
def test_every_ascend_flag_and_export_is_rendered(catalog: Catalog, scenario: str) -> None:
    body = catalog.launches[scenario]
    for command in ascend_commands(body):
        part = body[command.role] if command.role else body[command.name]
        assert list(command.arguments) == expected_tokens(part["flags"])
    topology = body["topology"]
    servers = [command for command in ascend_commands(body) if command.role]
    assert len(servers) == topology["nodes_total"]


@pytest.mark.parametrize("scenario", ASCEND)
def test_every_ascend_script_is_accepted_by_a_shell(tmp_path: Path, scenario: str) -> None:
    for script in render(f"ascend/{scenario}", "", "ascend_a3", "default", [], "hosts"):
        (tmp_path / script.name).write_text(script.text)
        subprocess.run(["bash", "-n", str(tmp_path / script.name)], check=True)


@pytest.mark.parametrize("scenario", ASCEND)
def test_given_hosts_stand_in_every_ascend_script_and_nothing_else_changes(catalog: Catalog, scenario: str) -> None:
    row = (f"ascend/{scenario}", "", "ascend_a3", "default")
    published = "".join(script.text for script in render(*row, [], "hosts"))
    for command in ascend_commands(catalog.launches[scenario]):
        assert list(command.argv) in shell_words(published, command.program[0])
    num_hosts = catalog.launches[scenario]["topology"]["nodes_total"]
    hosts = [f"10.0.0.{index}" for index in range(num_hosts)]
    *scripts, launch = render(*row, hosts, "hosts")
    assert "# /path/to/model-weights, unless MODEL_PATH is exported." in published
    assert "<your" in published and not any("<your" in script.text for script in (*scripts, launch))
    assert all(f"ssh -tt {host} " in launch.text for host in hosts)
    assert all(f':-{host}}}"' in script.text for host in hosts for script in scripts)
    with pytest.raises(WorkflowError, match=rf"need {num_hosts} hosts and --hosts gave 1 \(a\)"):
        render(*row, ["a"], "hosts")


@pytest.mark.parametrize(("server", "code"), [("exec /bin/sleep 876.543", 7), ("exit 3", 1)])
def test_an_ascend_benchmark_waits_for_every_instance_and_ends_them(tmp_path: Path, server: str, code: int) -> None:
    row = "ascend/glm_5_1_w4a8_2p1d_48p_in128k_out1k_prefix90_50ms"
    script = render(row, "", "ascend_a3", "default", [f"n{index}" for index in range(6)], "hosts")[0].text
    vendor = tmp_path / "set_env.sh"
    vendor.write_text("true $NEVER_SET\nfalse\n")
    programs = {
        "sysctl": "exit 1",
        "tee": "exec cat > /dev/null",
        "sleep": "exec /bin/sleep 0.1",
        "python3": server,
        # The second time it is asked, an instance answers, if there is one.
        "curl": 'echo "${@: -1}" >> order; [ "$(grep -cF "${@: -1}" order)" -ge 2 ]'
        + ("" if code == 7 else " && false"),
        "python": 'case "$2" in *router*) echo "$*" > router; exec /bin/sleep 876.543;; esac\n'
        "until [ -s router ]; do sleep; done; echo benchmark >> order; exit 7",
        "run.sh": re.sub(r"/usr/local/Ascend/\S+", str(vendor), script),
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text if text.startswith("#!") else f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [tmp_path / "run.sh"], cwd=tmp_path, env=environment, timeout=60, start_new_session=True,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert done.returncode == code
    if code == 7:
        ready = ["http://n0:8000/health", "http://n2:8000/health", "http://n4:8001/health"]
        asked = [url for url in (*ready, "http://127.0.0.1:6688/v1/models") for _ in range(2)]
        assert (tmp_path / "order").read_text().split() == [*asked, "benchmark"]
        leaders = "--prefill http://n0:8000 8998 --prefill http://n2:8000 8999 --decode http://n4:8001"
        assert leaders in (tmp_path / "router").read_text()
    else:
        assert "a process has ended" in done.stderr and not (tmp_path / "router").exists()
    until = time.monotonic() + 10
    while [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["/bin/sleep", "876.543"]]:
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("placement", ["hosts", "srun"])
@pytest.mark.parametrize(
    ("row", "testbed"),
    [("decode/baseline", "h200x8"), ("integrated/optimized", "h200x16"), ("integrated/baseline", "h200x16")],
)
def test_every_h200_script_is_accepted_by_a_shell(tmp_path: Path, row: str, testbed: str, placement: str) -> None:
    for script in render(row, "", testbed, "default", [], placement):
        (tmp_path / script.name).write_text(script.text)
        subprocess.run(["bash", "-n", str(tmp_path / script.name)], check=True)


def test_words_reach_the_program_as_rendered(catalog: Catalog) -> None:
    script = render("decode/baseline", "", "h200x8", "default", [], "hosts")[0].text
    printed = ["sglang", "serve", *expected_tokens(catalog.launches["baseline_1p1d"]["decode"]["flags"])]
    assert printed in shell_words(script, "sglang serve")


def test_two_nodes_are_started_by_ssh_or_inside_an_allocation() -> None:
    hosts = ["10.0.0.1", "10.0.0.2"]
    ssh = render("integrated/optimized", "", "h200x16", "default", hosts, "hosts")[-1].text
    assert "script=\"$(base64 < host_b.sh | tr -d '\\n')\"\nssh -tt 10.0.0.2 " in ssh
    srun = render("integrated/optimized", "", "h200x16", "default", hosts, "srun")[-1].text
    assert srun.count("srun --nodes=1 --ntasks=1") == 2
    assert "--kill-on-bad-exit=1" in srun


def test_hosts_may_stand_between_commas() -> None:
    row = ("integrated/optimized", "", "h200x16", "default")
    assert render(*row, ["a,b"], "hosts") == render(*row, ["a", "b"], "hosts")


@pytest.mark.parametrize(
    ("row", "testbed", "num_hosts"),
    [
        ("integrated/optimized", "h200x16", 2),
        ("ascend/glm_5_1_w4a8_4p1d_48p_in64k_out1k_prefix90_50ms", "ascend_a3", 6),
    ],
)
def test_a_spooled_copy_of_the_launcher_finds_its_hosts(tmp_path: Path, row: str, testbed: str, num_hosts: int) -> None:
    """sbatch runs a copy of its script; the stub of srun ends when every host has begun."""
    *hosts, launch = render(row, "", testbed, "default", [], "srun")
    assert f"from this folder: sbatch --nodes={num_hosts} --exclusive launch.sh" in launch.text
    submitted, spool, programs = (tmp_path / name for name in ("scripts", "spool", "programs"))
    for folder in (submitted, spool, programs):
        folder.mkdir()
    for host in hosts:
        (submitted / host.name).write_text("echo $0 >> started\n")
    (spool / "slurm_script").write_text(launch.text)
    stubs = {
        "scontrol": f"printf 'node%s\\n' {' '.join(map(str, range(num_hosts)))}",
        "getent": "echo 127.0.0.1 STREAM",
        "srun": f'bash "${{@: -1}}"; until [ "$(wc -l < started)" -eq {num_hosts} ]; do sleep 0.1; done',
    }
    for name, text in stubs.items():
        (programs / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[0-5]"}
    run = functools.partial(subprocess.run, ["bash", spool / "slurm_script"], cwd=spool, timeout=30)
    run(check=True, env={**environment, "SLURM_SUBMIT_DIR": str(submitted)})
    assert sorted((submitted / "started").read_text().split()) == sorted(host.name for host in hosts)
    elsewhere = run(env={**environment, "SLURM_SUBMIT_DIR": str(programs)}, capture_output=True, text=True)
    assert elsewhere.returncode == 1 and "run sbatch in the folder of launch.sh" in elsewhere.stderr


def test_hosts_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# the two of rack 3\n10.0.0.1\n\n10.0.0.2  # decode\n")
    launch = render("integrated/optimized", "", "h200x16", "default", [str(tmp_path / "hosts")], "hosts")[-1].text
    assert "ssh -tt 10.0.0.1 " in launch and "ssh -tt 10.0.0.2 " in launch and "rack" not in launch


@pytest.mark.skipif(
    shutil.which("script") is None, reason="a terminal stands for the other host's, and script makes one"
)
@pytest.mark.parametrize("login_shell", ["bash", "sh"])
def test_when_the_first_host_has_ended_nothing_is_left_on_the_second(tmp_path: Path, login_shell: str) -> None:
    launch = render("integrated/optimized", "", "h200x16", "default", ["a", "b"], "hosts")[-1].text
    began = tmp_path / "began"
    scripts = {
        "launch.sh": launch,
        "ssh": 'exec script -qec "$3" /dev/null',
        "host_a.sh": f"until [ -e {began} ]; do sleep 0.1; done\nsleep 1",
        "host_b.sh": "trap 'kill 0' EXIT\n(exec sleep 654.321) &\n"
        f"""printf '%s\\n' "it's" '"$HOME"' > {began}\nwait -n""",
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(text if text.startswith("#!") else f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SHELL": shutil.which(login_shell) or ""}

    def hear_hangups() -> None:
        """As a login shell behind sshd does; whoever runs the tests under nohup does not."""
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    subprocess.run([tmp_path / "launch.sh"], check=True, timeout=30, env=environment, preexec_fn=hear_hangups)
    assert began.read_text() == 'it\'s\n"$HOME"\n'
    until = time.monotonic() + 10
    while left := [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "654.321"]]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


@pytest.mark.parametrize("code", [0, 7])
def test_a_script_ends_its_servers_and_with_the_code_of_its_benchmark(tmp_path: Path, code: int) -> None:
    programs = {
        "sglang": "exec sleep 765.432",
        "curl": "exit 0",
        "python": f"case $2 in sglang.benchmark*) exit {code};; *) exec sleep 765.432;; esac",
        "run.sh": render("decode/baseline", "", "h200x8", "default", [], "hosts")[0].text,
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / "run.sh"], cwd=tmp_path, env=environment, timeout=60, start_new_session=True)
    assert done.returncode == code
    until = time.monotonic() + 10
    while [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "765.432"]]:
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("placement", ["hosts", "srun"])
def test_every_row_that_the_list_calls_script_only_has_scripts(catalog: Catalog, placement: str) -> None:
    rendered = set()
    for testbed, body in catalog.testbeds.items():
        for engine in ("default", *body.engines):
            for entry in catalog.rows.values():
                if resolve(catalog, entry, testbed, engine).status == "script_only":
                    scripts = render(entry.name, "", testbed, engine, [], placement)
                    hosts = [script for script in scripts if script.name != "launch.sh"]
                    assert all("  exec " in script.text for script in hosts), f"{entry.name} has an empty host"
                    assert (len(hosts) > 1) == (scripts[-1].name == "launch.sh")
                    rendered.add((testbed, entry.suite_id))
    assert {("h200x16", "decode"), ("h200x16", "integrated"), ("ascend_a3", "ascend")} <= rendered


def test_a_row_for_one_host_is_the_same_on_two_hosts() -> None:
    assert render("decode/baseline", "", "h200x16", "default", [], "hosts") == render(
        "decode/baseline", "", "h200x8", "default", [], "hosts"
    )


@pytest.mark.parametrize("exported", ["", "/my/own weights"])
def test_programs_get_the_printed_words_but_for_an_exported_folder(
    catalog: Catalog, tmp_path: Path, exported: str
) -> None:
    record = "printf '%s\\n' \"$@\" > words.$$; mv words.$$ argv.$$"
    programs = {
        "sglang": f"{record}; exec sleep 60",
        "curl": "exit 0",
        "python": "case $2 in sglang.benchmark*) ;; *) exec sleep 60;; esac\n"
        f"{record}; until [ $(ls argv.* | wc -l) -eq 3 ]; do sleep 0.1; done",
        "run.sh": render("decode/baseline", "", "h200x8", "default", [], "hosts")[0].text,
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MODEL_PATH": exported}
    subprocess.run([tmp_path / "run.sh"], cwd=tmp_path, env=environment, timeout=60, start_new_session=True, check=True)
    folder = exported or "/path/to/GLM-5.3-Flash"
    means = {"$MODEL_PATH": folder, "/path/to/GLM-5.3-Flash": folder, "$BENCH_HOST": "127.0.0.1"}
    printed = [
        [means.get(word, word) for word in command.argv[1:]]
        for command in h200_commands(catalog, "decode/baseline", "sp99_9")
        if command.name != "router"
    ]
    assert sorted(printed) == sorted(path.read_text().splitlines() for path in tmp_path.glob("argv.*"))


def test_the_wrong_number_of_hosts_is_refused() -> None:
    with pytest.raises(WorkflowError, match=r"need 2 hosts and --hosts gave 1 \(10.0.0.1\): repeat --hosts for each"):
        render("integrated/optimized", "", "h200x16", "default", ["10.0.0.1"], "hosts")
    with pytest.raises(WorkflowError, match=r"need 1 host and --hosts gave 2 \(a; b\)"):
        render("decode/baseline", "", "h200x16", "default", ["a,b"], "hosts")


def test_a_row_without_a_launch_says_why() -> None:
    with pytest.raises(NotApplicableError, match="keeps draft rows for every token"):
        render("decode/draft_ring", "", "h200x8", "default", [], "hosts")


def test_our_own_row_comes_as_one_script_with_its_configurations(tmp_path: Path) -> None:
    (script,) = render("decode/baseline", "", "cpu", "default", [], "hosts")
    (tmp_path / "run.sh").write_text(script.text)
    subprocess.run(["bash", "-n", str(tmp_path / "run.sh")], check=True)
    assert "python -m stack.server run/d0.json --set server.port=31001" in script.text
    assert "{port:" not in script.text and "{dir}" not in script.text


@pytest.mark.parametrize("word", ["plain", "two words", "it's", 'say "hi"', "a;b", "<your ip>", "*", "back`tick"])
def test_a_quoted_word_comes_back_from_a_shell_unchanged(word: str) -> None:
    done = subprocess.run(["bash", "-c", f"printf %s {quote(word)}"], capture_output=True, text=True, check=True)
    assert done.stdout == word


def test_a_variable_is_expanded_and_kept_one_word() -> None:
    done = subprocess.run(
        ["bash", "-c", f"X='a b'; printf '%s|' {quote('$X-end')}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "a b-end|"
