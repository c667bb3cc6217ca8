"""The MTP ("nextn") layer: one more decoder block that guesses a token ahead of the target. Knows no requests.

Entry i joins the target's last hidden at position i with the embedding of the token at i + 1:

    z = eh_proj([rms_norm(embed[token_{i+1}]; enorm), rms_norm(h_i; hnorm)])
    z = z + attention(rms_norm(z));  z = z + experts(rms_norm(z))
    r_i = rms_norm(z; shared_head.norm);  lm_head(r_i) guesses the token at i + 2

A plain single-stream residual; its latents and index rows are the last paged layer of the request's own pages. In a
chain the next entry takes r where the target's hidden would stand.

T rows, C channels, W selected tokens.
"""

import torch
from torch import Tensor

from stack.core import ForwardContext, ModelGeometry
from stack.core.memory import ModelMemory
from stack.layers import MixtureOfExperts, Ops, SparseAttention, Weights
from stack.layers.mlp import num_live_rows
from stack.layers.projection import Projection


class MtpLayer:
    """Weights of the layer, bound to the target's ops. `embed_VC` is the target's embedding."""

    def __init__(
        self, geometry: ModelGeometry, ops: Ops, weights: Weights, embed_VC: Tensor, *, layer_number: int
    ) -> None:
        prefix, width = f"layers.{layer_number}.", geometry.hidden_size
        self._ops = ops
        self._embed_VC = embed_VC
        self._eps = geometry.rms_norm_eps
        names = ("enorm", "hnorm", "input_layernorm", "post_attention_layernorm", "shared_head.norm")
        norms = (weights.tensor(f"{prefix}{name}.weight", (width,), mean=1.0) for name in names)
        self._enorm_C, self._hnorm_C, self._before_C, self._after_C, self._last_C = norms
        self._join = Projection.load(ops, weights, f"{prefix}eh_proj.weight", width, 2 * width)
        self._attention = SparseAttention.load(ops, weights, f"{prefix}self_attn.", geometry)
        self._experts = MixtureOfExperts.load(ops, weights, f"{prefix}mlp.", geometry)

    @torch.inference_mode()
    def forward(
        self,
        token_T: Tensor,
        hidden_TC: Tensor,
        ctx: ForwardContext,
        memory: ModelMemory,
        index_TW: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """r [T, C] and the index sets used [T, W]; `token_T` are the tokens behind each row's position.

        With `index_TW` those sets are attended and the indexer neither runs nor keeps the rows.
        """
        embedded_TC = self._norm(self._embed_VC[token_T.long()], self._enorm_C)
        z_TC = self._join(torch.cat([embedded_TC, self._norm(hidden_TC, self._hnorm_C)], -1))
        y_TC, index_TW = self._attention(
            self._norm(z_TC, self._before_C), ctx, memory.paged[-1], memory.index_workspace_bytes, index_TW
        )
        z_TC = z_TC + y_TC
        z_TC = z_TC + self._experts(self._norm(z_TC, self._after_C), num_live_rows(ctx))
        return self._norm(z_TC, self._last_C), index_TW

    def _norm(self, x_TC: Tensor, weight_C: Tensor) -> Tensor:
        normed: Tensor = self._ops.rms_norm(x_TC, weight_C, eps=self._eps)
        return normed
