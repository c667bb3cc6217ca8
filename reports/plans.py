"""What a session's plan says of its instances. Knows nothing of tables."""

from collections.abc import Mapping
from typing import Any

Tree = dict[str, Any]


def instance_config(plan: Mapping[str, Any], role: str) -> Tree | None:
    """The whole configuration of the first instance of a role, or of one that has both."""
    for process in plan.get("processes", ()):
        if process.get("role") in (role, "single"):
            for name, tree in process.get("files", {}).items():
                if name.endswith(".json") and isinstance(tree, dict) and "cache" in tree:
                    return dict(tree)
    return None


def instances(plan: Mapping[str, Any], role: str) -> set[str]:
    """Names of the instances that do a half."""
    return {process["name"] for process in plan.get("processes", ()) if process.get("role") in (role, "single")}


def topology(plan: Mapping[str, Any]) -> str:
    """`3P1D`; an instance that does both halves is `colocated`, and decode alone is `1D`."""
    roles = [process["role"] for process in plan.get("processes", ())]
    if "single" in roles:
        return "colocated"
    counts = {letter: roles.count(role) for letter, role in (("P", "prefill"), ("D", "decode"))}
    return "".join(f"{count}{letter}" for letter, count in counts.items() if count)


def verify_width(config: Tree) -> int:
    """Rows of one request in a decode step."""
    speculation = config.get("speculation", {})
    return int(speculation["verify_width"]) if speculation.get("method", "off") != "off" else 1
