"""What makes a result the result of this cell: canonical keys and the digest of the code that it ran.

Two texts that mean the same have the same key: keys are sorted, numbers keep their type, comments and docstrings do not
count. The key of a cell holds its own settings only, so that a new row or a changed caption reruns nothing.
"""

import ast
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

MEASURE_VERSION = 1
"""Raised by hand when the way of measuring changes, so that old sessions are not mixed with new ones."""

GPU_ONLY = ("triton_", "tilelang_", "deep_gemm", "fla_", "flash_", "split_")
"""Beginnings of kernel modules that a CPU testbed never runs."""
ENGINE_FOLDERS = ("stack",)
CLIENT_FOLDERS = ("workloads",)
DEFINITIONS = tuple(
    f"workloads/{name}.py"
    for name in ("client_facts", "definitions", "engine_log", "gpu_samples", "metrics", "passes", "validity", "window")
)
"""What turns records into values and verdicts: a change here computes metrics again and measures nothing."""
NOT_MEASURED = (
    "stack/plan/",
    "stack/training/",
    *(
        f"workloads/{name}"
        for name in (
            "accuracy",
            "crosscheck",
            "export",
            "null_server",
            "numbers",
            "operating_point",
            "paired",
            "peers",
            "scoring",
        )
    ),
    *DEFINITIONS,
)
"""Code beside the path of a session."""


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces. Raises ValueError for a number that is not finite."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """Twelve hex digits of the canonical form."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:12]


def measured_code(engine: str, platform: str, root: Path = ROOT) -> str:
    """Twelve hex digits over the code that a session of this engine on this platform runs."""
    folders = (*ENGINE_FOLDERS, *CLIENT_FOLDERS) if engine == "stack" else CLIENT_FOLDERS
    return _code_digest(root, folders, platform == "cpu")


def definition_code(root: Path = ROOT) -> str:
    """Twelve hex digits over the code that turns records into metrics."""
    total = hashlib.sha256()
    for name in DEFINITIONS:
        total.update(f"{name}\0{_meaning(root / name)}\0".encode())
    return total.hexdigest()[:12]


def drawing_code(root: Path = ROOT) -> str:
    """Twelve hex digits over everything in `reports/`: captions and styles count here."""
    total = hashlib.sha256()
    for path in sorted((root / "reports").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(path.read_bytes())
    return total.hexdigest()[:12]


@functools.cache
def _code_digest(root: Path, folders: tuple[str, ...], is_cpu: bool) -> str:
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if name.startswith(NOT_MEASURED) or (is_cpu and path.name.startswith(GPU_ONLY)):
                continue
            total.update(f"{name}\0{_meaning(path)}\0".encode())
        if not is_cpu:
            for path in sorted(p for p in (root / folder).rglob("*") if p.suffix in (".cu", ".cuh")):
                total.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return total.hexdigest()[:12]


def _meaning(path: Path) -> str:
    source = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [s for s in body if not _is_text(s)]  # type: ignore[attr-defined]
    return ast.dump(tree, include_attributes=False).replace(
        ", type_params=[]", ""
    )  # Python 3.12 has that field, 3.11 not


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
