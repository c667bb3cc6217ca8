"""Everything that rows, mechanisms and the report's switches name is there: files, settings, kernels."""

import re
from pathlib import Path
from typing import Any

import yaml

from reports.tables.mechanisms import MECHANISMS
from stack.config import EngineConfig, setting_paths, with_settings
from stack.kernels.catalog import OPS
from workflows.catalog import load_catalog

CONFIG = Path("workflows/config")


def test_rows_name_implementations_that_exist() -> None:
    named = [
        (path.removeprefix("kernels."), value)
        for entry in load_catalog().rows.values()
        for settings in (entry.row.set, entry.row.stack.set, *entry.row.wants.values())
        for half in settings.values()
        for path, value in half.items()
        if path.startswith("kernels.") and path.removeprefix("kernels.") in OPS
    ]
    assert len(named) >= 8
    assert [one for one in named if one[1] not in (*OPS[one[0]].all_impls, "auto")] == []


def test_every_file_that_a_mechanism_names_exists() -> None:
    mechanisms = yaml.safe_load((CONFIG / "mechanisms.yaml").read_text())
    files = [file for body in mechanisms.values() for file in body.get("files", ())]
    assert len(files) >= 12
    assert [file for file in files if not Path(file).is_file()] == []


def test_every_setting_in_the_words_of_a_mechanism_exists() -> None:
    text = (CONFIG / "mechanisms.yaml").read_text()
    named = set(re.findall(r"\b((?:cache|kernels|scheduler|speculation|graphs|disagg|model)\.\w+)", text))
    assert named <= set(setting_paths()), named - set(setting_paths())


def test_every_switch_of_the_report_is_a_setting_with_a_value_or_a_part_of_a_row() -> None:
    parts = {part for entry in load_catalog().rows.values() for part in entry.row.wants}
    for item, mechanism in MECHANISMS.items():
        switch = mechanism.switch
        if switch in ("always on", "none"):
            continue
        if switch.startswith("part "):
            assert switch.removeprefix("part ") in parts, item
            continue
        path, _, text = switch.partition(": ")
        assert path in setting_paths(), f"{item}: {path}"
        value: Any = yaml.safe_load(text) if text else None
        if value is not None:
            with_settings(EngineConfig(), {"role": "decode", path: value})
        if (op := path.removeprefix("kernels.")) in OPS and value is not None:
            assert value in OPS[op].all_impls, f"{item}: {switch}"
