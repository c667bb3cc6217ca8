"""Every kernel that a row names exists in the engine's catalogue, or the row says that it is not built."""

import re
from pathlib import Path

import yaml

from stack.kernels.catalog import OPS

CONFIG = Path("workflows/config")
NOT_BUILT = {"flash_q8"}
"""Named by rows whose mechanism is listed with a file that does not exist yet."""


def test_rows_name_implementations_that_exist():
    named = re.findall(r"kernels\.(\w+): (\w+)", (CONFIG / "ladders.yaml").read_text())
    named = [(op, impl) for op, impl in named if op in OPS]
    assert len(named) >= 5
    wrong = [(op, impl) for op, impl in named if impl not in (*OPS[op].all_impls, "auto") and impl not in NOT_BUILT]
    assert not wrong


def test_what_is_not_built_is_listed_so():
    mechanisms = yaml.safe_load((CONFIG / "mechanisms.yaml").read_text())
    missing = {Path(file).stem for entry in _entries(mechanisms) for file in entry if not Path(file).exists()}
    assert missing >= NOT_BUILT


def _entries(node):
    if isinstance(node, dict):
        return [node["files"]] if "files" in node else [e for child in node.values() for e in _entries(child)]
    return []
