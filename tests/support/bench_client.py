"""Run SGLang's own serving benchmark, unmodified, from its installed wheel without its engine's dependencies.

The benchmark imports two small things from the engine side. Their parent packages run heavy code on import, so they are
entered into `sys.modules` as empty packages here, and the benchmark's own files load as they are.
Usage: `python tests/support/bench_client.py <arguments of sglang.benchmark.serving>`.
"""

import ast
import importlib.util
import runpy
import sys
import types
from pathlib import Path

_EMPTY_PACKAGES = ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation")
_CONSTANTS_OF = "sglang.srt.disaggregation.utils"


def main() -> None:
    """Prepare the packages, then hand over the command line."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the sglang wheel is not installed; pip install --no-deps sglang==0.5.23")
    site = Path(next(iter(spec.submodule_search_locations))).parent
    for name in _EMPTY_PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(site.joinpath(*name.split(".")))]
        sys.modules[name] = package
    sys.modules[_CONSTANTS_OF] = _constants(site.joinpath(*_CONSTANTS_OF.split(".")).with_suffix(".py"))
    runpy.run_module("sglang.benchmark.serving", run_name="__main__", alter_sys=True)


def _constants(file: Path) -> types.ModuleType:
    """A module with the plain constants of `file` and nothing else of it."""
    module = types.ModuleType(_CONSTANTS_OF)
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    setattr(module, target.id, node.value.value)
    return module


if __name__ == "__main__":
    main()
