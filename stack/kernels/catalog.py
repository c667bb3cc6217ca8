"""Every op by name, without importing torch: what `kernels.*` settings are checked against."""

from stack.kernels import dflash_block as _dflash_block
from stack.kernels import gated_norm as _gated_norm
from stack.kernels import index_select as _index_select
from stack.kernels import index_write as _index_write
from stack.kernels import kda_chunk as _kda_chunk
from stack.kernels import kda_commit as _kda_commit
from stack.kernels import kda_conv as _kda_conv
from stack.kernels import kda_decode as _kda_decode
from stack.kernels import kda_verify as _kda_verify
from stack.kernels import latent_write as _latent_write
from stack.kernels import linear as _linear
from stack.kernels import linear_fp8 as _linear_fp8
from stack.kernels import mhc_boundary as _mhc_boundary
from stack.kernels import moe as _moe
from stack.kernels import quantize_rows as _quantize_rows
from stack.kernels import rms_norm as _rms_norm
from stack.kernels import router as _router
from stack.kernels import sample as _sample
from stack.kernels import sparse_mla as _sparse_mla
from stack.kernels import swiglu as _swiglu
from stack.kernels import swiglu_quant as _swiglu_quant
from stack.kernels.binding import Op

OPS: dict[str, Op] = {
    "dflash_block": _dflash_block.OP,
    "gated_norm": _gated_norm.OP,
    "index_select": _index_select.OP,
    "index_write": _index_write.OP,
    "kda_chunk": _kda_chunk.OP,
    "kda_commit": _kda_commit.OP,
    "kda_conv": _kda_conv.OP,
    "kda_decode": _kda_decode.OP,
    "kda_verify": _kda_verify.OP,
    "latent_write": _latent_write.OP,
    "linear": _linear.OP,
    "linear_fp8": _linear_fp8.OP,
    "mhc_boundary": _mhc_boundary.OP,
    "moe": _moe.OP,
    "quantize_rows": _quantize_rows.OP,
    "rms_norm": _rms_norm.OP,
    "router": _router.OP,
    "sample": _sample.OP,
    "sparse_mla": _sparse_mla.OP,
    "swiglu": _swiglu.OP,
    "swiglu_quant": _swiglu_quant.OP,
}
"""Each op's implementations in order of preference."""
