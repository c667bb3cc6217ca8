"""Pages, state slots, prefix caches and the memory plan.

What is exported here is pure Python; tensors live in `stack.cache.pages` and `stack.cache.states`, which are imported
by name so that a scheduler never imports torch.
"""

from stack.cache.allocator import RunAllocator, merged_runs
from stack.cache.choice import prefix_cache
from stack.cache.hybrid_radix import HybridRadix
from stack.cache.keys import PageKeys
from stack.cache.kv_radix import KvRadix
from stack.cache.layout import CacheLayout, cache_layout, description_hash, explain_mismatch, layout_from_config
from stack.cache.lease import Lease
from stack.cache.no_prefix import NoPrefix
from stack.cache.prefix import PoolCounts, PrefixCache

__all__ = [
    "CacheLayout",
    "HybridRadix",
    "KvRadix",
    "Lease",
    "NoPrefix",
    "PageKeys",
    "PoolCounts",
    "PrefixCache",
    "RunAllocator",
    "cache_layout",
    "description_hash",
    "explain_mismatch",
    "layout_from_config",
    "merged_runs",
    "prefix_cache",
]
