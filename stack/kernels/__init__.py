"""One folder an op: contract, reference, cases, implementations. Knows no models and no caches: tensors and scalars only."""

from stack.kernels.binding import BoundOp, Op

__all__ = ["BoundOp", "Op"]
