"""From a configuration to a model: geometry, weights, bound ops."""

import dataclasses
from pathlib import Path

import torch

from stack.config import EngineConfig
from stack.core import ModelGeometry
from stack.kernels.moe.tables import ExpertShape, load_table
from stack.layers import Weights, bind_ops
from stack.models.checkpoint import CheckpointWeights
from stack.models.random_weights import RandomWeights
from stack.models.target import TargetModel


def load_model(config: EngineConfig, device: torch.device | str) -> TargetModel:
    """The target of `config.model` on `device`. Raises ConfigError or MissingImplementationError."""
    device = torch.device(device)
    geometry = model_geometry(config)
    table = load_table(config.kernels.moe_table) if config.kernels.moe_table else None
    if table:
        table.check(expert_shape(config, geometry, device))
    ops = bind_ops(config.kernels, device.type, moe_tiles=table)
    with torch.no_grad():
        return TargetModel(geometry, ops, open_weights(config, device))


def expert_shape(config: EngineConfig, geometry: ModelGeometry, device: torch.device) -> ExpertShape:
    """What tuned tiles of the experts belong to."""
    return ExpertShape(
        experts=geometry.num_experts,
        width=geometry.hidden_size,
        inner=geometry.expert_intermediate_size,
        choices=geometry.experts_per_token,
        weights="fp8" if ModelGeometry.from_file(Path(config.model.path)).is_fp8 else config.model.compute_dtype,
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    )


def model_geometry(config: EngineConfig) -> ModelGeometry:
    """The checkpoint's geometry, cut to `model.num_layers` where that is set."""
    geometry = ModelGeometry.from_file(Path(config.model.path))
    count = config.model.num_layers
    if count is None:
        return geometry
    return dataclasses.replace(geometry, layer_kinds=geometry.layer_kinds[:count], mlp_kinds=geometry.mlp_kinds[:count])


def open_weights(config: EngineConfig, device: torch.device | str) -> Weights:
    """The source of `config.model`'s weights; the MTP layer is read from it by the layer's own names."""
    device = torch.device(device)
    dtype = torch.float32 if config.model.compute_dtype == "float32" else torch.bfloat16
    path = Path(config.model.path)
    if config.model.weights == "random":
        is_fp8 = ModelGeometry.from_file(path).is_fp8
        return RandomWeights(config.model.random_seed, dtype, device, is_fp8=is_fp8)
    return CheckpointWeights(path, dtype, device)
