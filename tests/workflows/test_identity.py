"""What a session ran counts, on the platform that ran it."""

from pathlib import Path

from workflows.identity import measured_code


def tree(root: Path, source: str) -> Path:
    folder = root / "stack" / "kernels" / "moe"
    folder.mkdir(parents=True)
    (folder / "cuda_route.py").write_text("TILE = 1\n")
    (folder / "route.cu").write_text(source)
    return root


def test_a_changed_cuda_source_is_other_code_on_a_gpu_and_none_on_a_cpu(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "one", "a"), tree(tmp_path / "two", "b")
    assert measured_code("stack", "cuda", one) != measured_code("stack", "cuda", two)
    assert measured_code("stack", "cpu", one) == measured_code("stack", "cpu", two)


def test_the_digest_of_a_source_is_the_same_by_every_python_that_runs_here(tmp_path: Path) -> None:
    folder = tmp_path / "workloads"
    folder.mkdir()
    (folder / "one.py").write_text(
        "class One:\n    async def two(self, x: int = 3) -> str:\n        return f'{x!r} {x:>4}'\n"
    )
    assert measured_code("sglang", "cpu", tmp_path) == "d1519bb9c61c", "as Python 3.11 and 3.12 both give it"
