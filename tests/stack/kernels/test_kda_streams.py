"""Launch choices of KDA's streams of states: what is defined, and that a form by each differs from the one in use."""

import re

import pytest

from stack.kernels.catalog import OPS
from stack.kernels.kda_decode import streams
from tools.gpu.micro import kda_forms
from tools.gpu.micro.variants import chosen, implementation


def test_choices_are_what_the_source_has() -> None:
    header = streams.VERIFY.with_name("kda_stream.cuh").read_text()
    found = re.findall(r"^#ifndef (KDA_\w+).*\n#define (KDA_\w+) (\d+)$", header, re.MULTILINE)
    assert {name: int(value) for name, _, value in found} == streams.CHOICES
    assert all(asked == defined for asked, defined, _ in found)


@pytest.mark.parametrize("op", kda_forms.FORMS)
def test_forms_differ_from_each_other_and_from_the_one_in_use(op: str) -> None:
    for impl in {implementation(form) for form in kda_forms.FORMS[op]}:
        module = OPS[op].module(impl)
        used = module._kernel("bf16").defines
        defines = []
        for form in (form for form in kda_forms.FORMS[op] if implementation(form) == impl):
            with chosen(op, form):
                defines.append(module._kernel("bf16").defines)
        assert used not in defines and len(set(defines)) == len(defines)


@pytest.mark.parametrize(("kind", "blocks", "halves"), [("bf16", 2, 4), ("f32", 2, 3)])
def test_as_many_blocks_as_shared_memory_has_room_for(kind: str, blocks: int, halves: int) -> None:
    commit = OPS["kda_commit"].module("cuda_stream")
    assert commit._blocks(kind) == blocks
    with chosen("kda_commit", "cuda_stream@cuda_stream.PARTS=2"):
        assert commit._blocks(kind) == halves
