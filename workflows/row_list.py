"""Writes what every row comes to on a testbed, for a report that knows results alone.

    python -m workflows.row_list --testbed cpu --out results/cpu/rows.json

The same words as `np1d list`: a row that has no session is then told from one that cannot have any.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from workflows.catalog import Catalog, load_catalog
from workflows.errors import WorkflowError
from workflows.resolution import resolve
from workloads.files import write_json

ROWS_SCHEMA = "rows/1"


def row_list(catalog: Catalog, testbed: str, engine: str) -> dict[str, dict[str, str]]:
    """Row -> its `status` and, where it does not run, the `reason`. Raises CatalogError for an unknown testbed."""
    resolutions = (resolve(catalog, entry, testbed, engine) for entry in catalog.rows.values())
    return {one.entry.name: {"status": one.status, "reason": one.reason} for one in resolutions}


def write_rows(catalog: Catalog, testbed: str, engine: str, path: Path) -> None:
    """The list as the file that a report reads. Raises CatalogError for an unknown testbed."""
    write_json(path, {"schema": ROWS_SCHEMA, "rows": row_list(catalog, testbed, engine)})


def main(arguments: Sequence[str] | None = None) -> int:
    """Write one testbed's list. Exit code 2 for a mistake of the user."""
    parser = argparse.ArgumentParser(prog="python -m workflows.row_list", description="Write what runs on a testbed.")
    parser.add_argument("--testbed", required=True)
    parser.add_argument("--engine", default="default")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args(arguments)
    try:
        write_rows(load_catalog(), options.testbed, options.engine, options.out)
    except WorkflowError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
