"""Which prefix cache a configuration asks for."""

from stack.cache.hybrid_radix import HybridRadix
from stack.cache.kv_radix import KvRadix
from stack.cache.no_prefix import NoPrefix
from stack.cache.prefix import PrefixCache
from stack.config import EngineConfig


def prefix_cache(config: EngineConfig, *, num_pages: int, num_slots: int) -> PrefixCache:
    """The cache of `config.cache.prefix` over pages 1 to `num_pages` and slots 1 to `num_slots`."""
    cache = config.cache
    lookahead = 1 if config.speculation.method == "mtp" else 0
    if cache.prefix == "hybrid_radix":
        most = num_slots // 4 if cache.snapshot_slots is None else cache.snapshot_slots
        return HybridRadix(
            page_size=cache.page_size,
            num_pages=num_pages,
            num_slots=num_slots,
            lookahead=lookahead,
            max_snapshots=most,
        )
    kind = KvRadix if cache.prefix == "kv_radix" else NoPrefix
    return kind(page_size=cache.page_size, num_pages=num_pages, num_slots=num_slots, lookahead=lookahead)
