"""Few and many experts, equal scores, padding rows."""

import torch

from stack.kernels.cases import Call, Case, Draw


def _rows(rows: int, experts: int, top_k: int, real: int | None = None, *, is_equal: bool = False) -> Case:
    def build(draw: Draw) -> Call:
        weight = draw.normal(experts, 256, std=1 / 16)
        if is_equal:
            weight[experts // 2 :] = weight[: experts - experts // 2]
        bias = draw.normal(experts, std=0.0 if is_equal else 0.1, dtype=torch.float32)
        num_rows = None if real is None else draw.ints([real])[0]
        options = {"top_k": top_k, "scaling": 2.5, "normalize": True, "num_rows": num_rows}
        return Call((draw.normal(rows, 256), weight, bias), options)

    name = f"{rows}x{experts}_top{top_k}{'_equal' if is_equal else ''}{'' if real is None else '_padded'}"
    return Case(name, build, bfloat16=1e-4)


CASES = (_rows(1, 8, 2), _rows(17, 288, 8), _rows(33, 72, 2, real=20), _rows(9, 8, 2, is_equal=True))
