"""Launch choices of KDA's streams of states: what is defined, and that as many blocks are launched as have room."""

import re

import pytest

from stack.kernels.catalog import OPS
from stack.kernels.kda_decode import streams


def test_choices_are_what_the_source_has() -> None:
    header = streams.VERIFY.with_name("kda_stream.cuh").read_text()
    found = re.findall(r"^#ifndef (KDA_\w+).*\n#define (KDA_\w+) (\d+)$", header, re.MULTILINE)
    assert {name: int(value) for name, _, value in found} == streams.CHOICES
    assert all(asked == defined for asked, defined, _ in found)


@pytest.mark.parametrize("kind", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("op", "impl"),
    [
        ("kda_verify", "cuda_stream"),
        ("kda_verify", "cuda_stream_chunk"),
        ("kda_verify", "cuda_stream_roles"),
        ("kda_commit", "cuda_stream"),
        ("kda_commit", "cuda_stream_chunk"),
    ],
)
def test_shared_memory_has_room_for_the_blocks(op: str, impl: str, kind: str) -> None:
    module = OPS[op].module(impl)
    blocks = module._blocks(kind) if hasattr(module, "_blocks") else module.BLOCKS
    assert streams.fitting_blocks(module._kernel(kind).shared_bytes, blocks) == blocks
    assert module._kernel(kind).defines == ()
