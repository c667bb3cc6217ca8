import pytest
import torch

from stack.core.errors import ConfigError, TransferError
from stack.transfer import Pools, Spans, TransferAgent
from stack.transfer.descriptors import paired

PAGES, PAGE_BYTES, SLOTS, SLOT_BYTES = 64, 4096, 8, 10000
POISON = 0xEE


@pytest.fixture
def source():
    tensors = {
        "pages": torch.arange(PAGES, dtype=torch.uint8)[:, None].expand(PAGES, PAGE_BYTES).contiguous(),
        "slots": torch.randint(0, 256, (SLOTS, SLOT_BYTES), dtype=torch.uint8),
    }
    pools = Pools(**{name: Spans.of_tensor(tensor) for name, tensor in tensors.items()})
    agent = TransferAgent(pools, telemetry=True)
    yield agent, tensors
    agent.close()


def write(agent, peer, pool, local, remote):
    handle, done = agent.post(peer, pool, *paired(local, remote))
    while not done:
        done = agent.is_done(handle)
    counted = agent.merged_descriptors(handle)
    agent.release(handle)
    return handle, counted


def test_pages_and_slots_land_byte_exact_and_neighbours_stay_poisoned(source, start_target):
    agent, tensors = source
    target = start_target()
    peer = agent.connect(target.metadata, target.pools)
    moved = dict(zip([3, 4, 5, 20, 9], [10, 11, 12, 30, 0], strict=True))
    write(agent, peer, "pages", list(moved), list(moved.values()))
    write(agent, peer, "slots", [2], [7])
    for local, remote in moved.items():
        assert target.read("pages", remote) == bytes(tensors["pages"][local].numpy())
    for index in set(range(PAGES)) - set(moved.values()):
        assert target.read("pages", index) == bytes([POISON]) * PAGE_BYTES
    assert target.read("slots", 7) == bytes(tensors["slots"][2].numpy())
    for index in range(7):
        assert target.read("slots", index) == bytes([POISON]) * SLOT_BYTES


@pytest.mark.parametrize(
    ("local", "remote", "runs"),
    [
        (list(range(1, 33)), list(range(8, 40)), 1),
        (list(range(1, 33)), list(range(39, 7, -1)), 32),
        ([1, 2, 10, 11], [5, 6, 7, 8], 2),
        ([9], [9], 1),
    ],
)
def test_the_count_of_descriptors_is_the_one_that_nixl_counts(source, start_target, local, remote, runs):
    agent, _ = source
    target = start_target()
    peer = agent.connect(target.metadata, target.pools)
    handle, counted = write(agent, peer, "pages", local, remote)
    assert (handle.num_descriptors, counted) == (runs, runs)
    assert handle.num_bytes == len(local) * PAGE_BYTES


def test_a_dead_peer_is_an_error_and_a_new_process_a_new_peer(source, start_target):
    agent, tensors = source
    first = start_target()
    peer = agent.connect(first.metadata, first.pools)
    write(agent, peer, "pages", [1], [1])
    first.kill()
    with pytest.raises(TransferError):
        for _ in range(100):
            write(agent, peer, "pages", [1], [1])
    agent.disconnect(peer)
    assert agent.num_peers == 0
    second = start_target()
    peer = agent.connect(second.metadata, second.pools)
    write(agent, peer, "pages", [5], [2])
    assert second.read("pages", 2) == bytes(tensors["pages"][5].numpy())


def test_memory_that_the_peer_did_not_register_is_refused(source, start_target):
    agent, _ = source
    target = start_target()
    beyond = Spans(base=target.pools.pages.base, item_bytes=PAGE_BYTES, count=PAGES + 512)
    with pytest.raises(TransferError, match="cannot be reached"):
        agent.connect(target.metadata, Pools(pages=beyond, slots=target.pools.slots))


def test_a_pool_that_is_not_contiguous_is_refused():
    with pytest.raises(ConfigError, match="one contiguous tensor"):
        Spans.of_tensor(torch.zeros(4, 8)[:, ::2])


def test_items_of_unequal_size_are_named():
    pages, slots = Spans(base=0, item_bytes=64, count=4), Spans(base=0, item_bytes=32, count=4)
    other = Spans(base=0, item_bytes=128, count=4)
    ours = Pools(pages=pages, slots=slots)
    assert ours.mismatch(Pools(pages=other, slots=slots)) == "pages hold 64 bytes here and 128 bytes there"
    assert ours.mismatch(ours) == ""
