"""The parts of a decoder layer over bound ops: linear and sparse attention, MLPs, residual streams. Knows no model."""

from stack.layers.kda import LinearAttention
from stack.layers.mlp import DenseMlp, MixtureOfExperts
from stack.layers.ops import Ops, bind_ops
from stack.layers.projection import Projection
from stack.layers.sparse_attention import SparseAttention
from stack.layers.streams import Boundary
from stack.layers.weights import Weights

__all__ = [
    "Boundary",
    "DenseMlp",
    "LinearAttention",
    "MixtureOfExperts",
    "Ops",
    "Projection",
    "SparseAttention",
    "Weights",
    "bind_ops",
]
