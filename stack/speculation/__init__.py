"""Draft, verify, accept, commit. Knows nothing of HTTP and transfer."""

from stack.speculation.build import build_speculator

__all__ = ["build_speculator"]
