"""The published engine's own argument parser, without its dependencies: `sglang_parser.py FOLDER < COMMANDS.json`.

FOLDER holds the unpacked wheel. Packages that the parser's modules import and that are not installed are stood in for
by empty modules: they are not needed to register flags. Reads a list of argument lists; writes for each the flags that
the parser does not know, all words that it leaves (a value of a flag that takes none, too), and what it says.
"""

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
from typing import Any

from pydantic_core import core_schema

STAND_INS = {"IPython", "json_repair", "lxml", "partial_json_parser", "torchcodec", "torchvision", "xgrammar"}


class Absent(types.ModuleType):
    """A package that is not installed; every name in it is an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        anything = classmethod(lambda *_: core_schema.any_schema())
        return type(name, (), {"__get_pydantic_core_schema__": anything})


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Comes last: it is asked only for what nobody else has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in STAND_INS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = Absent(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    folder = sys.argv[1]
    sys.path.insert(0, folder)
    package = types.ModuleType("sglang")
    package.__path__ = [f"{folder}/sglang"]
    sys.modules["sglang"] = package
    sys.meta_path.append(AbsentFinder())
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    answers = []
    for arguments in json.load(sys.stdin):
        said = io.StringIO()
        unknown, error = list[str](), ""
        with contextlib.redirect_stderr(said):
            try:
                unknown = parser.parse_known_args(arguments)[1]
            except SystemExit:  # a warning, of a flag that is deprecated, does not end it
                error = (said.getvalue().strip().splitlines() or ["refused without a word"])[-1]
        flags = [word for word in unknown if word.startswith("--")]
        answers.append({"unknown": flags, "left": unknown, "error": error})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
