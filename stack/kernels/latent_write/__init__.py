"""Norm a latent row and put it into its page.

    c = rms_norm(kv; weight);  pages[write_t] = cast(c)         E4M3 saturates at +-448, no scale

    `latent_write(kv_TL, weight_L, latent_NPL, write_T, *, eps) -> c_TL`

N pages of P tokens; `latent_NPL` is a layer's strided view of the page pool; `write_T` int64 = page * P + offset, 0 for
padding rows, which write nothing. Returns the normalised row in kv's dtype.
"""

from stack.kernels.binding import Op

OP = Op(__name__, impls=("triton_scatter", "torch_scatter"))
