"""Compiled kernels that travel are found again in another folder, by Triton itself, and the stages stay behind."""

import json
import tarfile
from pathlib import Path

import pytest

from tools.gpu.calls import compiled


def test_a_kernel_is_found_in_another_folder_without_its_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from stack.kernels.rms_norm.triton_rows import _norm

    types = {"x": "*bf16", "weight": "*bf16", "y": "*bf16", "x_row": "i32", "width": "i32", "eps": "fp32"}
    source = ASTSource(_norm, {**types, "BLOCK": "constexpr"}, {"BLOCK": 512})

    def compile_in(build: Path) -> dict[str, object]:
        monkeypatch.setenv("TRITON_CACHE_DIR", str(build / "jit" / "triton"))
        asm: dict[str, object] = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm
        return asm

    first, second = tmp_path / "first", tmp_path / "elsewhere" / "build"
    assert {"ttir", "ptx", "cubin"} <= set(made := compile_in(first))
    compiled.keep([first], tmp_path / "kernels.tar.xz")
    (tmp_path / "first").rename(tmp_path / "gone")
    compiled.restore(tmp_path / "kernels.tar.xz", second)
    found = compile_in(second)  # compiled anew, it would have its stages again
    assert found["cubin"] == made["cubin"] and "ttir" not in found and "ptx" not in found


def test_the_first_folder_wins_and_a_broken_note_is_dropped(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "two")):
        for path in ("cuda/k.cubin", f"cuda/{name}.cubin", "jit/dg/kernel.cu", "jit/triton/key/k.ptx"):
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
    (tmp_path / "a/jit/triton/key/__grp__k.json").write_text('{"child_pa')
    (tmp_path / "b/jit/triton/key/__grp__j.json").write_text(json.dumps({"child_paths": {"j.cubin": "/gone/j.cubin"}}))
    compiled.keep([tmp_path / "a", tmp_path / "b"], tmp_path / "kernels.tar.xz")
    with tarfile.open(tmp_path / "kernels.tar.xz") as packed:
        assert not any(name.endswith(".ptx") for name in packed.getnames())
    compiled.restore(tmp_path / "kernels.tar.xz", tmp_path / "c")
    assert (tmp_path / "c/cuda/k.cubin").read_text() == "one" and (tmp_path / "c/cuda/b.cubin").read_text() == "two"
    (note,) = (tmp_path / "c/jit/triton/key").iterdir()
    assert json.loads(note.read_text())["child_paths"] == {"j.cubin": str(note.with_name("j.cubin").resolve())}


def test_without_an_archive_the_folders_are_made(tmp_path: Path) -> None:
    compiled.restore(tmp_path / "none.tar.xz", tmp_path / "build")
    assert (tmp_path / "build" / "jit").is_dir() and (tmp_path / "build" / "cuda").is_dir()
