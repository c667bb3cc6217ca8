"""How the TileLang programs of this op make queries an operand of matrix products. Not an implementation.

H heads of a row are what a block has, L latent values.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any, NamedTuple

from stack.kernels.sparse_mla.flat_pool import LATENT

E4M3 = "float8_e4m3fn"
E4M3_MAX, FLOAT16_MAX = 448.0, 65504.0


class Operands(NamedTuple):
    """Types: of stored latents and how many of their values are 16 bytes, of the output's product, of the scores'."""

    stored: str
    unit: int
    product: str
    scored: str


OPERANDS = {
    "bf16": Operands("bfloat16", 8, "bfloat16", "bfloat16"),
    "fp8": Operands(E4M3, 16, "float16", "float16"),
    "q8": Operands(E4M3, 16, "float16", E4M3),
}
"""`bf16` latents; `fp8` latents, widened; `q8`: the scores from FP8 operands, the output from widened ones."""


def taking(block_heads: int) -> Any:
    """The macro `take(q, row, block, heads, q_row, q_head, to_HL)`: the heads of a block of a row, the last head again
    for those that the row does not have."""
    import tilelang.language as tl

    @tl.macro
    def take(q, row, block, heads, q_row, q_head, to):
        for h, d in tl.Parallel(block_heads, LATENT):
            to[h, d] = q[
                tl.cast(row, "int64") * q_row
                + tl.cast(tl.min(block * block_heads + h, heads - 1), "int64") * q_head
                + d // 8,
                d % 8,
            ]

    return take


def placing(scored: str, heads: int) -> Any:
    """The macro `place(query_HL, largest_H, scale_log2, q_shared_HL, q_scale_H)`: FP32 queries to `q_shared` as type
    `scored`, and to `q_scale` what scores are multiplied with. E4M3 is quantised by head, with `largest` to work in."""
    import tilelang.language as tl

    @tl.macro
    def place(query, largest, scale_log2, q_shared, q_scale):
        if scored == E4M3:
            tl.reduce_absmax(query, largest, dim=1)
            for h in tl.Parallel(heads):
                q_scale[h] = tl.max(largest[h], 1e-10) / E4M3_MAX * scale_log2
                largest[h] = E4M3_MAX / tl.max(largest[h], 1e-10)
            for h, d in tl.Parallel(heads, LATENT):
                q_shared[h, d] = tl.cast(query[h, d] * largest[h], scored)
        else:
            for h in tl.Parallel(heads):
                q_scale[h] = scale_log2
            for h, d in tl.Parallel(heads, LATENT):
                q_shared[h, d] = tl.cast(
                    tl.max(tl.min(query[h, d], FLOAT16_MAX), -FLOAT16_MAX) if scored == "float16" else query[h, d],
                    scored,
                )

    return place
