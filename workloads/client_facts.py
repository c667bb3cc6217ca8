"""`client.json`: what the client did and saw beyond single requests. Reading it is all that this module does."""

from pathlib import Path
from typing import Any

from workloads.files import read_json

CLIENT_SCHEMA = "client/1"
CLIENT_FILE = "client.json"


def read_client_facts(path: Path) -> dict[str, Any]:
    """The facts. Raises ValueError when the file is of another version or not whole."""
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("schema") != CLIENT_SCHEMA:
        raise ValueError(f"{path.name} is not {CLIENT_SCHEMA}; run the session again")
    return facts
