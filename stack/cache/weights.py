"""Bytes of a model's weights, without loading them: from safetensors headers, or from the geometry if they are drawn.

Knows the checkpoint's shapes and which of them are stored as FP8; nothing of devices. The sizes are those of the
checkpoint's own dtypes: BF16, FP8 with FP32 scales of 128 x 128 blocks, FP32 for router bias, gates and mHC base.
"""

import json
import re
from pathlib import Path

from stack.config import EngineConfig
from stack.core.draft_geometry import DraftGeometry
from stack.core.errors import ConfigError
from stack.core.geometry import ModelGeometry

_FP8_BLOCK = 128 * 128
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def weight_bytes(config: EngineConfig, geometry: ModelGeometry, draft: DraftGeometry | None) -> int:
    """Weights of the target (with its MTP layer when it drafts) and of the draft. Raises ConfigError without a file."""
    model, has_mtp = config.model, config.speculation.method == "mtp"
    if model.weights == "random":
        target = geometry_bytes(geometry, has_mtp=has_mtp)
    else:
        mtp_layer = ModelGeometry.from_file(Path(model.path)).num_layers if has_mtp else -1
        target = header_bytes(Path(model.path), geometry.num_layers, mtp_layer)
    return target + (draft_bytes(draft) if draft else 0)


def header_bytes(folder: Path, num_layers: int, mtp_layer: int = -1) -> int:
    """Bytes of the tensors in the folder's safetensors files that belong to the layers in use."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(
            f"no *.safetensors in {folder}; point model.path at a checkpoint or set model.weights: random"
        )
    return sum(_tensor_bytes(file, num_layers, mtp_layer) for file in files)


def geometry_bytes(geometry: ModelGeometry, *, has_mtp: bool) -> int:
    """Bytes of a checkpoint of this geometry."""
    g = geometry
    embeddings = 2 * 2 * g.vocab_size * g.hidden_size + 2 * g.hidden_size
    mixers = len(g.kda_layers) * _kda_bytes(g) + len(g.dsa_layers) * _dsa_bytes(g)
    mlps = sum(_dense_bytes(g) if kind == "dense" else _moe_bytes(g) for kind in g.mlp_kinds)
    streams = g.num_layers * (2 * _streams_bytes(g) + 2 * 2 * g.hidden_size)
    mtp = _dsa_bytes(g) + _moe_bytes(g) + 2 * 2 * g.hidden_size**2 + 2 * 5 * g.hidden_size
    return embeddings + mixers + mlps + streams + (g.num_mtp_layers * mtp if has_mtp else 0)


def draft_bytes(draft: DraftGeometry) -> int:
    """Bytes of a DFlash2 draft in BF16."""
    d = draft
    query, context = d.num_heads * d.head_dim, d.num_kv_heads * d.head_dim
    attention = 2 * d.hidden_size * (query + context) + 2 * d.head_dim
    groups = d.hidden_size // d.conv_group_size
    conv = 2 * d.conv_kernel_size * d.hidden_size + 2 * d.conv_kernel_size * groups * d.hidden_size
    layer = attention + 3 * d.hidden_size * d.intermediate_size + 2 * conv + 2 * d.hidden_size
    shared = len(d.target_layer_ids) * d.hidden_size**2 + 2 * d.hidden_size
    selector = 2 * d.vocab_size * d.selector_rank + d.selector_rank * d.hidden_size
    return 2 * (d.num_layers * layer + shared + selector)


def _tensor_bytes(file: Path, num_layers: int, mtp_layer: int) -> int:
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    total = 0
    for name, tensor in header.items():
        match = _LAYER.search(name)
        if name != "__metadata__" and (match is None or _is_used(int(match[1]), num_layers, mtp_layer)):
            start, end = tensor["data_offsets"]
            total += end - start
    return total


def _is_used(layer: int, num_layers: int, mtp_layer: int) -> bool:
    return layer < num_layers or layer == mtp_layer


def _linear_bytes(geometry: ModelGeometry, *shapes: tuple[int, int]) -> int:
    values = sum(rows * columns for rows, columns in shapes)
    return values + 4 * (-(-values // _FP8_BLOCK)) if geometry.is_fp8 else 2 * values


def _kda_bytes(g: ModelGeometry) -> int:
    width = g.kda_num_heads * g.kda_head_dim
    projections = 4 * width * g.hidden_size + 2 * g.kda_head_dim * (g.hidden_size + width)
    small = g.kda_num_heads * g.hidden_size + 3 * width * g.conv_kernel_size + g.kda_head_dim
    return 2 * (projections + small) + 4 * (g.kda_num_heads + width)


def _dsa_bytes(g: ModelGeometry) -> int:
    quantized = _linear_bytes(
        g,
        (g.q_lora_rank, g.hidden_size),
        (g.num_heads * g.qk_head_dim, g.q_lora_rank),
        (g.kv_lora_rank, g.hidden_size),
        (g.hidden_size, g.num_heads * g.v_head_dim),
    )
    plain = g.num_heads * (g.qk_head_dim + g.v_head_dim) * g.kv_lora_rank + g.q_lora_rank + g.kv_lora_rank
    index = g.index_num_heads * g.index_head_dim * g.q_lora_rank
    index += (2 * g.index_head_dim + g.index_num_heads) * g.hidden_size
    index += (2 + g.index_kpool) * g.index_head_dim
    return quantized + 2 * (plain + index)


def _dense_bytes(g: ModelGeometry) -> int:
    return _linear_bytes(g, (3 * g.dense_intermediate_size, g.hidden_size))


def _moe_bytes(g: ModelGeometry) -> int:
    experts = g.num_experts * _linear_bytes(g, (3 * g.expert_intermediate_size, g.hidden_size))
    shared = _linear_bytes(g, (3 * g.shared_intermediate_size, g.hidden_size))
    return experts + shared + 2 * g.num_experts * g.hidden_size + 4 * g.num_experts


def _streams_bytes(g: ModelGeometry) -> int:
    rows = g.num_streams * (2 + g.num_streams)
    return 2 * rows * g.num_streams * g.hidden_size + 4 * (rows + 3)
