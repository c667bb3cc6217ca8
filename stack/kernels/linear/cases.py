"""Matrix shapes of the tiny model and of one rank of the release, one row to several tiles."""

import torch

from stack.kernels.cases import Call, Case, Draw


def _product(rows: int, inputs: int, outputs: int, **options: torch.dtype) -> "Case":
    def build(draw: Draw) -> Call:
        return Call((draw.normal(rows, inputs), draw.normal(outputs, inputs, std=inputs**-0.5)), dict(options))

    return Case(f"{rows}x{inputs}x{outputs}{'_wide' if options else ''}", build)


def _columns(draw: Draw) -> Call:
    return Call((draw.normal(9, 384)[:, 128:256], draw.normal(256, 128, std=0.1)))


def _heads(draw: Draw) -> Call:
    return Call((draw.normal(9, 4, 256), draw.normal(4, 512, 256, std=1 / 16)))


def _heads_by_row(draw: Draw) -> Call:
    return Call((draw.normal(9, 4, 256), draw.normal(4, 512, 256, std=1 / 16)), {"by_row": True})


def _column_heads(draw: Draw) -> Call:
    return Call((draw.normal(33, 800)[:, 500:756].unflatten(-1, (2, 128)), draw.normal(2, 512, 128, std=0.1)))


CASES = (
    _product(1, 256, 1796),
    _product(17, 512, 256),
    _product(64, 256, 8),
    _product(130, 128, 4096),
    _product(300, 1024, 24),
    _product(5, 256, 1024, out_dtype=torch.float32),
    Case("columns", _columns),
    Case("heads", _heads, function="linear_heads"),
    Case("heads_by_row", _heads_by_row, function="linear_heads"),
    Case("column_heads", _column_heads, function="linear_heads"),
)
