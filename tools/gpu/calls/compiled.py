"""Compiled kernels that travel between machines: `python3 -m tools.gpu.calls.compiled restore|keep ARCHIVE BUILD`.

`jit` holds Triton's, DeepGEMM's and TileLang's, `cuda` ours. What only a reader of Triton's kernels needs (its stages
before the cubin, three quarters of the bytes) stays behind. Triton notes where a kernel's files lie by their whole
paths; the notes are corrected where they are unpacked, or a cache filled in one folder would be of no use in another.
Standard library alone.
"""

import contextlib
import json
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

KINDS = ("jit", "cuda")
STAGES = {".source", ".ttir", ".ttgir", ".llir", ".ptx"}
"""Of a Triton kernel; only the cubin after them is loaded."""


def caches(build: Path) -> dict[str, str]:
    """The environment in which libraries keep what they compile in `build`."""
    jit = build / "jit"
    return {
        "TRITON_CACHE_DIR": str(jit / "triton"),
        "DG_JIT_CACHE_DIR": str(jit / "dg"),
        "TILELANG_CACHE_DIR": str(jit / "tilelang"),
    }


def restore(archive: Path, build: Path) -> None:
    """Unpacks `archive`, where there is one, into the folder `build`."""
    for kind in KINDS:
        (build / kind).mkdir(parents=True, exist_ok=True)
    if archive.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(build, filter="data")
    for note in (build / "jit" / "triton").glob("*/__grp__*.json"):
        try:
            names = json.loads(note.read_text())["child_paths"]
        except ValueError:  # its writer was ended; the kernel is compiled again
            note.unlink()
            continue
        note.write_text(json.dumps({"child_paths": {name: str(note.with_name(name).resolve()) for name in names}}))


def keep(builds: Sequence[Path], archive: Path) -> None:
    """Packs what several `build` folders hold; of what lies in several, the first one's."""
    taken: set[str] = set()
    with tarfile.open(archive, "w:xz", preset=3) as packed:
        for build in builds:
            for path in sorted(path for kind in KINDS for path in (build / kind).rglob("*") if path.is_file()):
                name = path.relative_to(build).as_posix()
                if name in taken or (name.startswith("jit/triton/") and path.suffix in STAGES):
                    continue
                taken.add(name)
                with contextlib.suppress(FileNotFoundError):  # a compiler that was ended may clean up yet
                    packed.add(path, name)


if __name__ == "__main__":
    verb, archive_name, build_name = sys.argv[1:]
    if verb == "restore":
        restore(Path(archive_name), Path(build_name))
    else:
        keep([Path(build_name)], Path(archive_name))
