"""`python -m tools.gpu.calls.sanitizer ARCHIVE`: compute-sanitizer for a machine that has none, a folder a version.

NVIDIA publishes it as a Python package. The version that belongs to the driver of those machines lacks the program
that starts the target, which later versions have and which serves both; the later one comes along whole in case the
first does not go with it. Knows nothing of kernels.
"""

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

PACKAGE = "nvidia-cuda-sanitizer-api"
VERSIONS = {"13.0.85": ("nvidia/cu13/bin", "nvidia/cu13/lib"), "13.5.25": ("nvidia/cu13/compute-sanitizer",)}
"""Version, and the folders of its package that hold programs and libraries."""

STARTERS = ("TreeLauncherSubreaper", "TreeLauncherTargetLdPreloadHelper")
PLATFORM = "manylinux_2_25_x86_64"


def pack_sanitizer(archive: Path) -> None:
    """Writes `archive` unless it is there."""
    if archive.exists():
        return
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "packed"
        for version, places in VERSIONS.items():
            _take(_wheel(Path(work), version), places, folder / version)
        *earlier, last = VERSIONS
        for version in earlier:
            for name in STARTERS:
                (folder / version / name).write_bytes((folder / last / name).read_bytes())
        for path in folder.rglob("*"):
            path.chmod(0o755)
        unfinished = archive.with_suffix(".part")
        with tarfile.open(unfinished, "w:xz") as packed:
            for version in VERSIONS:
                packed.add(folder / version, version)
        unfinished.replace(archive)


def _wheel(work: Path, version: str) -> Path:
    to = work / f"wheel-{version}"
    words = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform", PLATFORM]
    subprocess.run([sys.executable, *words, "-d", str(to), f"{PACKAGE}=={version}"], check=True)
    (wheel,) = to.glob("*.whl")
    return wheel


def _take(wheel: Path, places: tuple[str, ...], to: Path) -> None:
    """The files that lie right in `places`; a library that lies in two is the same in both."""
    to.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if str(PurePosixPath(name).parent) in places:
                (to / PurePosixPath(name).name).write_bytes(files.read(name))


if __name__ == "__main__":
    pack_sanitizer(Path(sys.argv[1]))
