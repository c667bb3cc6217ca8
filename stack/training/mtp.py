"""The MTP layer over whole sequences, and its chained steps, differentiable.

Entry i joins the target's hidden at i with the token at i + 1 and guesses the token at i + 2. Chained step s feeds the
token at i + 1 + s with the step before's output where the hidden stood, and attends to what entry i attended to: its
index set is shared, so chained entries see no other chained entry and add no keys.

B sequences, T entries, C channels.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stack.training.blocks import mixture, rms_norm
from stack.training.mixers import Attended, attend, attention_inputs, sparse_attention
from stack.training.parameters import Scope, Tensors


class MtpChain:
    """The layer after its first pass over entries 0 .. T - 1; `r` is that pass's output [B, T, C]."""

    def __init__(
        self, following: Tensor, hidden: Tensor, tensors: Tensors, config: dict[str, Any], *, is_sparse: bool = True
    ) -> None:
        """`following` [B, T] is the token behind each entry's position, `tensors` hold the target's and the layer's."""
        self._tensors, self._config = tensors, config
        self._scope = Scope(tensors, f"layers.{config['num_hidden_layers']}.")
        z = self._join(following, hidden)
        self._seen: Attended = sparse_attention(
            self._norm(z, "input_layernorm"), self._scope.within("self_attn."), config, is_sparse=is_sparse
        )
        self.index_loss = self._seen.index_loss
        self.r, self.load = self._finish(z + self._seen.output)

    def step(self, token: Tensor, r: Tensor) -> Tensor:
        """The chained step's output [B, T, C] for every entry at once."""
        z, (k, v) = self._join(token, r), self._seen.key_value
        _, q, _, _ = attention_inputs(self._norm(z, "input_layernorm"), self._scope.within("self_attn."), self._config)
        scores = torch.einsum("bthd,bshd->bhts", q, k).float() * q.shape[-1] ** -0.5
        return self._finish(z + attend(scores, self._seen.mask, v, self._scope.within("self_attn.")))[0]

    @property
    def load_prefix(self) -> str:
        """Prefix of the layer's mixture of experts."""
        return f"{self._scope.prefix}mlp."

    def _join(self, token: Tensor, hidden: Tensor) -> Tensor:
        embedded = functional.embedding(token, self._tensors["embed_tokens.weight"])
        pair = torch.cat((self._norm(embedded, "enorm"), self._norm(hidden, "hnorm")), -1)
        return functional.linear(pair, self._scope["eh_proj.weight"])

    def _finish(self, z: Tensor) -> tuple[Tensor, Tensor]:
        y, load = mixture(self._norm(z, "post_attention_layernorm"), self._scope.within("mlp."), self._config)
        return self._norm(z + y, "shared_head.norm"), load

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self._scope[f"{name}.weight"], self._config["rms_norm_eps"])
