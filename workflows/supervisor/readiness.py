"""Whether a server may be used: its own word, and where it fronts others, how many of them it has seen.

A status of 200 is not enough for a router, which answers before its workers do.
"""

import http.client
import json
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Probe:
    """What one look at a server told."""

    is_ready: bool
    word: str


def look(port: int, path: str, healthy_workers: int | None = None) -> Probe:
    """One GET on loopback; never raises."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(65536)
    except (OSError, http.client.HTTPException) as error:
        return Probe(False, f"{path}: {type(error).__name__}")
    finally:
        connection.close()
    if response.status != 200:
        return Probe(False, f"{path} answers {response.status}")
    if healthy_workers is None:
        return Probe(True, f"{path} answers 200")
    return _count(body, path, healthy_workers)


def told(port: int, path: str) -> dict[str, Any]:
    """The JSON object that one GET on loopback brings, empty where there is none; never raises."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = json.loads(response.read(1 << 20)) if response.status == 200 else {}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
    return body if isinstance(body, dict) else {}


def _count(body: bytes, path: str, wanted: int) -> Probe:
    try:
        seen = json.loads(body).get("healthy_workers")
    except (ValueError, AttributeError):
        return Probe(False, f"{path} names no healthy_workers")
    return Probe(seen == wanted, f"{path} has {seen} of {wanted} workers")
