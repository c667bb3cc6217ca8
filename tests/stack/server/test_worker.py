"""What is said about a worker that died, with real child processes."""

import asyncio

import pytest

from stack.server.worker import Worker


def obituary_of(script):
    async def live() -> str:
        process = await asyncio.create_subprocess_exec("/bin/sh", "-c", script, stderr=asyncio.subprocess.PIPE)
        worker = Worker(process)
        return worker.obituary(await worker.wait())

    return asyncio.run(live())


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("exit 3", "the worker process ended with exit code 3"),
        ("echo no room >&2; echo >&2; exit 2", "the worker process ended with exit code 2: no room"),
        ("echo no room >&2; sleep 2.5; exit 2", "the worker process ended with exit code 2: no room"),
        ("kill -SEGV $$", "the worker process was killed by SIGSEGV"),
        ("echo daily life >&2; sleep 2.5; kill -SEGV $$", "the worker process was killed by SIGSEGV"),
        ("echo daily life >&2; kill -TERM $$", "the worker process was killed by SIGTERM"),
        ("kill -40 $$", "the worker process was killed by signal 40"),
        (
            "echo daily life >&2; kill -9 $$",
            "the worker process was killed by SIGKILL, by hand or by the kernel for want of memory",
        ),
    ],
)
def test_the_way_it_died_is_said_and_a_line_only_where_it_belongs_to_the_end(script, sentence):
    assert obituary_of(script) == sentence


def test_the_line_before_a_signal_is_quoted_with_its_age():
    said = obituary_of("echo terminate called >&2; kill -ABRT $$")
    assert said.startswith("the worker process was killed by SIGABRT; the last line of its log, ")
    assert said.endswith(" s before: terminate called")
