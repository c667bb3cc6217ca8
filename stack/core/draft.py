"""The shape of a DFlash2 draft, read from its `config.json` (`DFlash2DraftModel`). Knows field names, no tensors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGeometry:
    """Sizes of one draft. Layers of the target are numbered from 0."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    window: int
    """A row at position p sees context from p - window + 1 on."""
    block_size: int
    mask_token_id: int
    tap_layers: tuple[int, ...]
    """Target layers whose completed output feeds the draft, in concatenation order."""
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers a context token keeps: K and V of every layer."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim

    @classmethod
    def from_file(cls, path: Path) -> "DraftGeometry":
        """Read `config.json` in the folder `path` (or the file itself). Raises ConfigError when it is unusable."""
        file = path / "config.json" if path.is_dir() else path
        try:
            return cls.from_hf(json.loads(file.read_text()))
        except FileNotFoundError:
            raise ConfigError(f"no config.json in {path}; point speculation.draft_path at a DFlash2 draft") from None
        except json.JSONDecodeError as error:
            raise ConfigError(f"{file} is not valid JSON: {error}") from None

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> "DraftGeometry":
        """Build from a Hugging Face draft config. Raises ConfigError for a missing field or a layer without window."""
        try:
            options = config["dflash_config"]
            if any(kind != "sliding_attention" for kind in config["layer_types"]):
                raise ConfigError("a DFlash2 draft with layers other than sliding_attention is not supported")
            if options["conv_kernel_size"] != 2:
                raise ConfigError("a DFlash2 draft with conv_kernel_size other than 2 is not supported")
            return cls(
                hidden_size=config["hidden_size"],
                num_layers=config["num_hidden_layers"],
                num_heads=config["num_attention_heads"],
                num_kv_heads=config["num_key_value_heads"],
                head_dim=config["head_dim"],
                intermediate_size=config["intermediate_size"],
                vocab_size=config["vocab_size"],
                rms_norm_eps=config["rms_norm_eps"],
                rope_theta=float(config["rope_theta"]),
                window=config["sliding_window"],
                block_size=options["block_size"],
                mask_token_id=options["mask_token_id"],
                tap_layers=tuple(options["target_layer_ids"]),
                conv_group_size=options["conv_group_size"],
                selector_rank=options["selector_rank"],
                selector_top_k=options["selector_top_k"],
            )
        except KeyError as error:
            raise ConfigError(f"the draft's config.json lacks the field {error}") from None
