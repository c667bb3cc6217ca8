"""Files that workloads read and that are not part of the repository: are they there, and how they come.

A file is only ever taken whole and with the declared digest, from a copy that the user names or from its address. What
is missing is one sentence with the way out.
"""

import hashlib
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from workflows.catalog import Catalog, nearest
from workflows.errors import SessionError, WorkflowError
from workflows.plan import DataNeed
from workflows.schema import DataFile
from workloads.files import write_bytes

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 60.0
MAX_BYTES = 1 << 30


def check_data(needs: Iterable[DataNeed], root: Path = ROOT) -> None:
    """Raises SessionError for the first file that is missing or has another content."""
    for need in needs:
        if reason := fault(need, root):
            raise SessionError("no_data", f"{need.path} {reason}; {way_to(need.name)}")


def way_to(name: str) -> str:
    """How a file comes."""
    return f"`np1d data {name}` downloads it, `np1d data {name} --from FILE` takes a copy that you have"


def fault(need: DataNeed | DataFile, root: Path = ROOT) -> str:
    """Why a file cannot be used, or an empty text."""
    path = root / need.path
    if not path.is_file():
        return "is not there"
    return "" if _digest(path.read_bytes()) == need.sha256 else "is not the declared file"


def bring(catalog: Catalog, name: str, source: Path | None, root: Path = ROOT) -> str:
    """Put the file of that name in its place, from a copy or from its address; returns what was done in one sentence.

    Raises WorkflowError when the copy is another file or the address does not answer.
    """
    if name not in catalog.data:
        raise WorkflowError(f"there is no data file {name}{nearest(name, catalog.data)}")
    file = catalog.data[name]
    if source is None and not fault(file, root):
        return f"{file.path} is there: {file.what}"
    content = _download(name, file) if source is None else _copy(source)
    if (got := _digest(content)) != file.sha256:
        origin = source or file.url
        raise WorkflowError(f"{origin} is not {file.what}: its SHA-256 is {got}, not {file.sha256}")
    write_bytes(root / file.path, content)
    return f"{file.path}: {file.what}, {len(content):,} bytes, licence {file.licence}"


def _copy(source: Path) -> bytes:
    try:
        return source.read_bytes()
    except OSError as error:
        raise WorkflowError(f"{source} cannot be read: {error.strerror}; give the path of the file itself") from None


def _download(name: str, file: DataFile) -> bytes:
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - https alone, by the schema
            return bytes(answer.read(MAX_BYTES))
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise WorkflowError(
            f"{file.url} cannot be read ({reason}); bring the file yourself: `np1d data {name} --from FILE`"
        ) from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
