"""One folder an op: contract, reference, cases, implementations. Tensors and scalars only: no models, no caches."""

from stack.kernels.binding import BoundOp, Op

__all__ = ["BoundOp", "Op"]
