"""Every kernel against its reference, then its time beside its floor: `python -m tools.gpu.micro [--only OP,..]
[--out FILE]`.

Exit code 1 when an implementation that should run is wrong or fails.
"""

import argparse
import contextlib
import fcntl
import gc
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from stack.kernels import cuda_source
from stack.kernels.catalog import OPS
from tools.gpu.micro.checks import Check, checks
from tools.gpu.micro.compare import distance, run
from tools.gpu.micro.inputs import Call
from tools.gpu.micro.shapes import Shape, device_name, hindrance, shapes
from tools.gpu.micro.timing import capture, median_us
from tools.gpu.micro.variants import chosen, implementation, is_measured


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="ops, separated by commas")
    parser.add_argument("--impl", default="", help="implementations, separated by commas")
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--skip-times", action="store_true")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds after which no new case starts")
    parser.add_argument("--shape", default="", help="time this shape alone, by its label")
    parser.add_argument("--keep-going", action="store_true", help="exit with 0 whatever the checks say; --out has them")
    parser.add_argument("--lock", type=Path, help="file that a shape's inputs and times wait for")
    parser.add_argument("--define", action="append", default=[], help="NAME=VALUE for every CUDA source")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cuda_source.FLAGS = (*cuda_source.FLAGS, *(f"-D{words}" for words in options.define))
    if problem := hindrance(options.only):
        parser.error(problem)
    begin = time.monotonic()
    wanted = set(filter(None, options.only.split(","))) or set(OPS)
    impls = set(filter(None, options.impl.split(",")))
    report: dict[str, Any] = {"device": device_name(), "torch": torch.__version__, "checks": [], "times": []}
    failed = False

    def save() -> None:
        if options.out:
            options.out.write_text(json.dumps(report, indent=1))

    def late() -> bool:
        return time.monotonic() - begin > options.deadline

    if not options.skip_checks:
        for check in checks():
            if check.op not in wanted or late():
                continue
            for row in check_rows(check, impls):
                report["checks"].append(row)
                save()
                failed |= row["verdict"] not in ("ok", "missing")
                print(
                    f"{row['verdict']:8} {row['op']:14} {row['impl']:22} {row['case']:50} {row['detail']}", flush=True
                )
    if not options.skip_times:
        for shape in shapes():
            if shape.op not in wanted or options.shape not in ("", shape.label) or late():
                continue
            with locked(options.lock):
                for row in time_rows(shape, impls):
                    report["times"].append(row)
                    save()
                    print(line(row), flush=True)
    save()
    print(f"{'FAILED' if failed else 'ok'} after {time.monotonic() - begin:.0f} s")
    return int(failed and not options.keep_going)


def check_rows(check: Check, impls: set[str]) -> list[dict[str, Any]]:
    """One row of the report for each implementation of a case, and for each variant of one that `impls` names."""
    torch.manual_seed(len(check.label))
    call = check.build()
    want = None
    rows = []
    variants = sorted(impl for impl in impls if "@" in impl and implementation(impl) in check.impls)
    for variant in (*check.impls, *variants):
        if impls and variant not in impls:
            continue
        impl = implementation(variant)
        row = {"op": check.op, "impl": variant, "case": check.label, "verdict": "ok", "detail": ""}
        rows.append(row)
        try:
            if reason := OPS[check.op].missing(impl, "cuda"):
                row |= {"verdict": "missing", "detail": reason[:160]}
                continue
            if want is None:
                want = run(function(check.op, "reference", call.function), bound(call, "reference"), "cpu")
            held = bound(call, impl)
            with chosen(check.op, variant) as keywords:
                with_keywords = Call(held.args, held.kwargs | keywords, held.outputs, written=held.written)
                got = run(function(check.op, impl, call.function), with_keywords, "cuda")
            torch.cuda.synchronize()
            errors = [distance(a, b) for a, b in zip(got, want, strict=True)]
            row["detail"] = " ".join(f"{error:.1e}" for error in errors)
            if not errors or max(errors) > check.tolerance:
                row["verdict"] = "WRONG"
        except Exception as error:
            row |= {"verdict": "FAILED", "detail": f"{type(error).__name__}: {str(error)[:300]}"}
            traceback.print_exc(limit=-2)
    return rows


@contextlib.contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Alone on the GPU among those that use the same file."""
    with contextlib.ExitStack() as stack:
        if path:
            fcntl.flock(stack.enter_context(path.open("w")), fcntl.LOCK_EX)
        yield


def time_rows(shape: Shape, impls: set[str]) -> Iterator[dict[str, Any]]:
    """One row of the report for each implementation of a shape."""
    call = None
    for variant in (*shape.impls, *shape.variants):
        impl = implementation(variant)
        if variant not in impls and not is_measured(variant):
            continue
        if (impls and impl not in impls) or impl not in OPS[shape.op].all_impls or OPS[shape.op].missing(impl, "cuda"):
            continue
        row: dict[str, Any] = {
            "op": shape.op,
            "impl": variant,
            "shape": shape.label,
            "floor_us": shape.floor_us,
            "anchor": shape.anchor,
        }
        row |= {"bytes": shape.bytes, "flop": shape.flop, "target_us": shape.target_us, "us": None}
        try:
            torch.manual_seed(1)
            call = call or shape.build()
            args, kwargs = bound(call, impl).args, bound(call, impl).kwargs
            run_once = function(shape.op, impl, call.function)
            with torch.inference_mode(), chosen(shape.op, variant) as keywords:
                row["us"] = median_us(capture(lambda f=run_once, a=args, k=kwargs | keywords: f(*a, **k)))
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
            traceback.print_exc(limit=-2)
        yield row
    del call
    gc.collect()
    torch.cuda.empty_cache()


def function(op: str, impl: str, name: str = "") -> Any:
    """An implementation's function with the op's name, or another one of its contract, whatever the device."""
    return getattr(OPS[op].module(impl), name or op)


INNER_OPS = {"swiglu_quant": "triton_fused", "quantize_rows": "triton_group"}
"""Ops that are arguments of others, and what they are bound to on a GPU."""


def bound(call: Call, impl: str) -> Call:
    """The call with the inner ops that its implementation would be bound to."""
    inner = {
        name: function(name, "reference" if impl == "reference" else choice)
        for name, choice in INNER_OPS.items()
        if name in call.kwargs
    }
    return Call(call.args, call.kwargs | inner, call.outputs, call.function, call.written, call.parameters)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    head = f"{row['op']:13} {row['impl']:20} {row['shape']:44}"
    if row["us"] is None:
        return f"{head} FAILED {row.get('error', '')}"
    us = row["us"]
    rate = f"{row['flop'] / us / 1e6:6.0f} TFLOP/s" if row["flop"] else " " * 14
    target = f" target {row['target_us']:.0f}" if row["target_us"] else ""
    share = f"{row['bytes'] / us / 1e6:5.2f} TB/s  {row['floor_us'] / us:4.0%} of floor"
    return f"{head} {us:9.1f} us {rate} {share}{target}  {row['anchor']}"


if __name__ == "__main__":
    sys.exit(main())
