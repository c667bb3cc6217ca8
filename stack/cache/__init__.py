"""Pages, state slots, prefix caches and the memory plan.

What is exported here is pure Python; tensors live in `stack.cache.pages`, `stack.cache.states` and `stack.cache.swap`,
which are imported by name so that a scheduler never imports torch.
"""

from stack.cache.allocator import RunAllocator, merged_runs
from stack.cache.layout import CacheLayout, cache_layout, explain_mismatch, layout_from_config

__all__ = [
    "CacheLayout",
    "RunAllocator",
    "cache_layout",
    "explain_mismatch",
    "layout_from_config",
    "merged_runs",
]
