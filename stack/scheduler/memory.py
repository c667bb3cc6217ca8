"""What a request holds of pages and slots, and when the scheduler may take more.

A thin layer over the prefix cache's leases: it adds admission chunk by chunk, the account of host memory for swapped
requests, and an `epoch` that tells when trying again makes sense. Pure integers. A lease is given back only when no
launched step and no transfer can touch its pages; the scheduler sees to that before it calls `release` or `vacate`.
"""

from stack.cache.prefix import PrefixCache
from stack.core.plan import PageEntries
from stack.scheduler.request import Request


class Memory:
    """Pages and slots of one instance."""

    def __init__(
        self,
        cache: PrefixCache,
        *,
        page_bytes: int = 1,
        slot_bytes: int = 0,
        swap_bytes: int = 0,
        slots_per_request: int = 1,
    ) -> None:
        self.cache = cache
        self.page_size = cache.page_size
        self.epoch = 0
        """Grows whenever memory returns: what did not fit may fit now."""
        self.repointed: list[tuple[Request, list[int]]] = []
        """Requests whose device page table is to learn of pages that `keep` changed, with their indices."""
        self.page_bytes = page_bytes
        self.slot_bytes = slot_bytes
        self._swap_free = swap_bytes
        self._slots_per_request = slots_per_request

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens`."""
        return -(-num_tokens // self.page_size)

    @property
    def num_available(self) -> int:
        """Pages that can be had, evicting what nobody uses."""
        counts = self.cache.page_counts()
        return counts.free + counts.evictable

    @property
    def most_tokens(self) -> int:
        """Tokens that all pages hold."""
        return self.cache.pages.total * self.page_size

    # -- leases --------------------------------------------------------------------------------------------------
    def attach(self, request: Request, *, promised: int, reserve: int) -> bool:
        """Lease a slot and the cached pages of a prompt that will be computed; False, and no change, when it does not
        fit.

        It fits when its prompt and `reserve` output tokens find pages besides the `promised` ones.
        """
        lease = self.cache.admit(request.keys, num_tokens=0, num_slots=self._slots_per_request)
        if lease is None:
            return False
        needed = self.pages_for(request.num_prompt + min(request.limit, reserve)) - len(lease.pages)
        if needed + promised > self.num_available:
            self.cache.release(lease)
            return False
        request.lease = lease
        request.num_computed = request.num_cached = lease.hit_tokens
        return True

    def attach_whole(self, request: Request, *, reserve: int) -> bool:
        """Lease a slot and all pages of a prompt that arrives computed, and of `reserve` output tokens."""
        tokens = request.num_prompt + max(min(request.limit, reserve), 1)
        request.lease = self.cache.admit(request.keys, num_tokens=tokens, num_slots=self._slots_per_request)
        if request.lease is None:
            return False
        request.num_cached = request.lease.hit_tokens
        return True

    def grow(self, request: Request, num_tokens: int) -> list[int] | None:
        """Extend the request's pages to hold `num_tokens`; the new ones, or None when there are too few."""
        assert request.lease
        return self.cache.extend(request.lease, num_tokens)

    def release(self, request: Request) -> None:
        """Return everything a request holds."""
        if request.lease is not None:
            self.cache.release(request.lease)
            request.lease = None
        self._swap_free += request.swap_bytes
        request.swap_bytes = 0
        self.epoch += 1

    # -- sharing -------------------------------------------------------------------------------------------------
    def chunk_end(self, request: Request, budget: int) -> int:
        """Where the request's next chunk of at most `budget` tokens ends; its start when the budget is too small."""
        assert request.lease
        start = request.num_computed
        most = request.num_prompt
        if most - start > budget:
            most = (start + budget) // self.page_size * self.page_size
        return self.cache.chunk_end(request.lease, start, most) if most > start else start

    def keep(self, request: Request, num_tokens: int) -> int:
        """Publish the prompt's whole pages up to `num_tokens`; the slot that its state is to be copied to, or 0.

        Called when the step that computes them is planned: whoever shares them runs in a later step of one stream.
        Where the cache has the same page already the request takes that one; its table learns so before its next step.
        """
        assert request.lease
        slot = 0 if num_tokens % self.page_size else self.cache.reserve_snapshot(request.lease)
        changed = self.cache.publish(request.lease, num_tokens, snapshot=slot)
        if changed:
            self.repointed.append((request, changed))
            self.epoch += 1
        return slot

    def take_repointed(self, entries: PageEntries) -> None:
        """Move the page-table entries that `keep` changed into a plan."""
        for request, indices in self.repointed:
            for index in indices if request.slot else ():
                entries.extend(request.slot, index, [request.pages[index]])
        self.repointed = []

    def keep_arrived(self, request: Request) -> None:
        """Publish the pages of a prompt whose transfer is complete; the request takes the cache's own where it has
        them."""
        assert request.lease
        self.cache.publish(request.lease, request.num_prompt)

    def keep_finished(self, request: Request) -> None:
        """Publish a finished request's whole pages, output included."""
        assert request.lease
        request.keys.extend(request.output[:-1])
        self.cache.publish(request.lease, request.length, repoint=False)

    def flush(self) -> int:
        """Drop every cached page and state that no request holds; the number of pages dropped."""
        self.epoch += 1
        return self.cache.flush()

    # -- giving way ----------------------------------------------------------------------------------------------
    def suspend(self, request: Request) -> list[int] | None:
        """Begin to swap a request out: indices of the pages to copy, or None when host memory does not suffice.

        Its launched steps may still write into any of its pages, so all of them are kept.
        """
        lease = request.lease
        assert lease
        most = len(lease.pages) * self.page_bytes + self.slot_bytes
        if most > self._swap_free:
            return None
        indices = self.cache.begin_suspend(lease, len(lease.pages) * self.page_size)
        request.swap_bytes = len(indices) * self.page_bytes + self.slot_bytes
        self._swap_free -= request.swap_bytes
        return indices

    def vacate(self, request: Request) -> None:
        """The copies of a swapped request are made: its pages and slot are free."""
        assert request.lease
        self.cache.finish_suspend(request.lease)
        self.epoch += 1

    def resume(self, request: Request, *, spare: int) -> list[int] | None:
        """Lease a swapped request's memory again, leaving `spare` pages: indices to copy back, or None when it
        fails."""
        lease = request.lease
        assert lease
        num_pages = len(lease.pages) + len(lease.saved)
        if len(lease.saved) + spare > self.num_available:
            return None
        indices = self.cache.resume(lease, num_tokens=num_pages * self.page_size, num_slots=self._slots_per_request)
        if indices is not None:
            self._swap_free += request.swap_bytes
            request.swap_bytes = 0
        return indices
