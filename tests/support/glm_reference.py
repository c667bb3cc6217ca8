"""The judge of the target model: transformers' own `glm5_next`, loaded by its own loader from the same folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.glm5_next import Glm5NextConfig, Glm5NextForConditionalGeneration, Glm5NextVisionConfig
from transformers.utils import logging


class GlmReference:
    """Logits of whole sequences; `indices` keeps what each indexer selected in the last call."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        logging.set_verbosity_error()
        config = Glm5NextConfig.from_pretrained(folder)
        config.vision_config = Glm5NextVisionConfig(
            depth=1, hidden_size=32, num_heads=2, intermediate_size=32, out_hidden_size=config.text_config.hidden_size
        )
        self.model = Glm5NextForConditionalGeneration.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation="eager"
        ).eval()
        self.indices: list[Tensor] = []
        for layer in self.model.model.language_model.layers:
            indexer = getattr(layer.self_attn, "indexer", None)
            if indexer is not None:
                indexer.register_forward_hook(self._keep)

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """FP32 logits [T, V] of one sequence without a cache."""
        self.indices = []
        hidden = self.model.model.language_model(input_ids=torch.tensor([list(tokens)]), use_cache=False)
        return self.model.lm_head(hidden.last_hidden_state)[0].float()

    def _keep(self, module: Any, inputs: Any, output: Tensor) -> None:
        self.indices.append(output[0])
