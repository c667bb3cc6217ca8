"""GLM-5.3-Flash's text model and its drafters: weights, layers, one forward. Knows no requests and no scheduling."""

from stack.models.loading import load_model, model_geometry, open_weights
from stack.models.target import Hidden, TargetModel

__all__ = ["Hidden", "TargetModel", "load_model", "model_geometry", "open_weights"]
