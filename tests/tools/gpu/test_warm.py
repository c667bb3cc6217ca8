"""What calls compile is compiled beforehand, on a GPU that does nothing; what is lacking is one sentence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stack.kernels.cuda_source import compiler
from tools.gpu.calls import pack, warm
from tools.gpu.calls.table import names_of, read_calls, read_lists
from tools.gpu.null import library

needs_nvcc = pytest.mark.skipif(compiler() is None or shutil.which("gcc") is None, reason="needs nvcc and gcc")

PROGRAM = """
import ctypes
here = ctypes.CDLL(None)
count, major, piece = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
assert here.cuInit(0) == 0 and here.cudaGetDeviceCount(ctypes.byref(count)) == 0 and count.value == 1
assert here.cudaDeviceGetAttribute(ctypes.byref(major), 75, 0) == 0 and major.value == 9
size = ctypes.c_size_t(1 << 36)  # more than this machine has
assert here.cudaMalloc(ctypes.byref(piece), size) == 0
there, back = ctypes.create_string_buffer(b"copied"), ctypes.create_string_buffer(7)
assert here.cudaMemcpy(piece, there, ctypes.c_size_t(7), 1) == 0
assert here.cudaMemcpy(back, piece, ctypes.c_size_t(7), 2) == 0 and back.value == b"copied"
assert here.cudaFree(piece) == 0
assert here.cuLaunchKernelEx(None, None, None, None) == 0
assert ctypes.CDLL("libcuda.so.1").cuModuleUnload(None) == 0  # found by its name, too
"""


@needs_nvcc
def test_a_program_that_sees_the_library_has_a_gpu_whose_memory_holds_what_is_copied(tmp_path: Path) -> None:
    library.build(tmp_path, [], str(compiler()))
    environment = {**library.environment(tmp_path), "PATH": ""}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60)


def test_every_step_of_the_lists_is_compiled_for_once(tmp_path: Path) -> None:
    calls = read_calls()
    chosen = [calls[name] for stages in read_lists().values() for name in names_of(stages)]
    jobs = list(warm.jobs_of(chosen, tmp_path))
    assert len({job.words for job in jobs}) == len(jobs)
    named = {job.name.split()[0] for job in jobs}
    assert {
        "proof_1.engine",
        "decode_optimized.dflash2_tuned_moe_dsa_partial",
        "prefill_baseline.baseline",
        "logits_1.logits",
    } <= named
    assert not any(name.startswith(("tile_1.", "collectives_1.", "sanitize_1.")) for name in named)
    starts = [job for job in jobs if job.words[0] == "tools.gpu.null.start"]
    configs = [json.loads(Path(job.words[1]).read_text()) for job in starts if Path(job.words[1]).parent == tmp_path]
    assert {config["role"] for config in configs} == {"prefill", "decode", "single"}
    batch_264 = [job for job in jobs if job.name.endswith(".batch_264 d0")]
    assert len(batch_264) == 1 and sum("batch_264" in step.name for call in chosen for step in call.steps) > 1


def test_the_sets_of_definitions_that_implementations_take_are_all_among_the_checked_ones() -> None:
    """A kernel of a CUDA source is compiled where a check or a timed shape launches it."""
    from stack.kernels.catalog import OPS
    from tools.gpu.micro.checks import checks
    from tools.gpu.micro.shapes import shapes
    from tools.gpu.micro.variants import implementation

    launched = {(check.op, impl) for check in checks() for impl in check.impls}
    launched |= {(shape.op, implementation(impl)) for shape in shapes() for impl in (*shape.impls, *shape.variants)}
    ours = {
        (op, impl)
        for op in OPS
        for impl in OPS[op].impls
        if "cuda" in impl or "cuda_source" in Path(str(OPS[op].module(impl).__file__)).read_text()
    }
    assert len(ours) > 25 and ours <= launched


def test_a_machine_without_the_right_python_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warm, "WORK", tmp_path)
    for named in ("no-such-python", "false"):
        with pytest.raises(warm.NotHereError, match=f"{named} is not one that runs here; name one with --python"):
            warm._python(named)
    assert warm.main([str(tmp_path / "kernels.tar.xz"), "--steps-only", "no_such_call"]) == 2
    assert "no call no_such_call; there are one_1" in capsys.readouterr().err


def test_a_call_is_not_packed_without_kernels_or_routes_unless_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pack, "_pack", lambda carry, packages: None)
    monkeypatch.setattr(pack, "_write_tree", lambda path: None)
    build, carry = tmp_path / "build", tmp_path / "carry"
    words = ["--carry", str(carry), "--build", str(build)]
    assert pack.main(["one_2", *words]) == 2
    archive = build / "kernels.tar.xz"
    assert f"python -m tools.gpu.calls.warm {archive} one_2" in capsys.readouterr().err and not carry.exists()
    assert pack.main(["one_2", *words, "--without-kernels"]) == 0
    build.mkdir()
    archive.write_bytes(b"kernels")
    assert pack.main(["one_2", *words]) == 0 and (carry / "kernels.tar.xz").read_bytes() == b"kernels"
    assert pack.main(["tune_1", *words]) == 2
    assert "routes_1" in capsys.readouterr().err
    (build / "routes.safetensors").touch()
    assert pack.main(["tune_1", *words]) == 0 and (carry / "routes.safetensors").exists()


def test_packages_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "tools" / "gpu" / "pack.sh"
    script.parent.mkdir(parents=True)
    script.write_text('#!/bin/sh\necho "$@" > "$1/site.tar.xz"; echo run >> "$(dirname "$0")/runs"\n')
    script.chmod(0o755)
    monkeypatch.setattr(pack, "ROOT", tmp_path)
    first, again, other = pack.packed_site(("a",)), pack.packed_site(("a",)), pack.packed_site(("b",))
    assert first == again != other and first.read_text().endswith("a\n")
    assert (script.parent / "runs").read_text() == "run\nrun\n"
