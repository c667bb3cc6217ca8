"""The shape of a DFlash2 draft model, read from its `config.json`.

Knows the draft checkpoint's field names and nothing of tensors or of the target beyond the layers it taps.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGeometry:
    """Sizes of one draft. Counts are of elements, not bytes."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    window: int
    """Tokens a row attends to, itself included: only the last `window - 1` committed tokens are ever read."""
    block_size: int
    """Rows of one draft pass: the pending token and the masked positions."""
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    """Target layers whose completed outputs feed the draft, from 0."""
    num_target_layers: int
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @property
    def context_values(self) -> int:
        """K and V values of one context token over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim

    @classmethod
    def from_file(cls, path: Path) -> "DraftGeometry":
        """Read `config.json` in the folder `path` (or the file itself). Raises ConfigError when it is unusable."""
        file = path / "config.json" if path.is_dir() else path
        try:
            return cls.from_hf(json.loads(file.read_text()))
        except FileNotFoundError:
            raise ConfigError(f"no config.json in {path}; point speculation.draft_path at a draft's folder") from None
        except json.JSONDecodeError as error:
            raise ConfigError(f"{file} is not valid JSON: {error}") from None

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "DraftGeometry":
        """Build from a Hugging Face config. Raises ConfigError for a missing field or a layer without a window."""
        try:
            return cls(**_fields(config))
        except KeyError as error:
            raise ConfigError(f"the draft's config.json lacks the field {error}") from None


def _fields(config: dict[str, Any]) -> dict[str, Any]:
    if any(kind != "sliding_attention" for kind in config.get("layer_types") or []):
        raise ConfigError("a DFlash2 draft must use sliding_attention in every layer: its context is kept for a window")
    block = config["dflash_config"]
    heads = config["num_attention_heads"]
    return {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": config["num_key_value_heads"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "intermediate_size": config["intermediate_size"],
        "rms_norm_eps": config["rms_norm_eps"],
        "rope_theta": float(_rope_theta(config)),
        "window": config["sliding_window"],
        "block_size": block["block_size"],
        "mask_token_id": block["mask_token_id"],
        "target_layer_ids": tuple(block["target_layer_ids"]),
        "num_target_layers": config["num_target_layers"],
        "conv_kernel_size": block["conv_kernel_size"],
        "conv_group_size": block["conv_group_size"],
        "selector_rank": block["selector_rank"],
        "selector_top_k": block["selector_top_k"],
    }


def _rope_theta(config: dict[str, Any]) -> float:
    if "rope_theta" in config:
        return config["rope_theta"]
    return (config.get("rope_parameters") or {})["rope_theta"]
