"""Both cores against each other over a network that loses, repeats, delays and reorders, with processes that die.

Time, transport and memory are simulated; the cores and their tables are the real ones. A `World` may live at random, or
a test moves it step by step.
"""

import itertools

from stack.config import DisaggConfig
from stack.disagg.decode_core import DecodeCore
from stack.disagg.decode_room import Memory
from stack.disagg.events import Arrived, Failed, Released, Reserved
from stack.disagg.messages import Endpoint, Refused
from stack.disagg.prefill_core import PrefillCore
from stack.disagg.prefill_room import Record
from stack.transfer import Outcome, Pools, Spans

PAGE, PAGES, SLOTS, PROMPT, PLACE = 64, 24, 8, 200, ("host", 1)
POOLS = Pools(pages=Spans(base=0, item_bytes=1, count=PAGES), slots=Spans(base=0, item_bytes=1, count=SLOTS))
CONFIG = DisaggConfig(
    heartbeat_interval_s=1.0, bootstrap_timeout_s=8.0, transfer_timeout_s=12.0, abort_ack_timeout_s=4.0
)
P_CLOCK_AHEAD_S = 1e6
LAYOUT, OTHER_LAYOUT = {"a": "1"}, {"a": "2"}
REFUSAL = "lay out their caches differently"
TALK_ROUNDS = 20
WEIGHTS = {
    "request_arrives": 6,
    "decode_finds_memory": 3,
    "prefill_computes": 12,
    "prefill_gives_up": 0.5,
    "decode_gives_up": 2,
    "message_arrives": 8,
    "oldest_messages_arrive": 20,
    "message_is_lost": 1.5,
    "all_messages_are_lost": 0.5,
    "message_is_repeated": 3,
    "lookup_answers": 6,
    "write_starts": 14,
    "write_ends": 10,
    "outcome_is_seen": 14,
    "death_is_seen": 4,
    "time_passes": 12,
    "much_time_passes": 0.5,
    "all_goes_well_for_a_while": 1,
    "prefill_restarts": 0.3,
    "decode_restarts": 0.3,
}


class PrefillSide:
    """A prefill process: core, engine and transfer thread."""

    def __init__(self, world, number, layout):
        self.world, self.name, self.layout = world, f"p{number}", layout
        self.core = PrefillCore(self.name, layout, POOLS, CONFIG, PAGE, self)
        self.waiting, self.running, self.leases, self.peers = [], [], {}, set()
        self.given, self.ended, self.failures = {}, {}, {}

    @property
    def now(self):
        return self.world.now + P_CLOCK_AHEAD_S

    def send(self, peer, message):
        if isinstance(message, Refused):
            mine = [room for room in message.rooms if room in self.given and self.world.asked[room].name == peer]
            untold = [room for room in mine if room not in self.ended]
            assert not untold, f"decode hears of an end before prefill's own engine: {untold}"
        self.world.network.append(("decode", peer, self.name, message))

    def tell(self, event):
        assert event.room in self.given, f"{event} about a room without a request"
        if isinstance(event, Reserved):
            return
        assert event.room not in self.ended or self.ended[event.room] == "engine", f"{event} after its end"
        self.ended[event.room] = type(event).__name__
        if isinstance(event, Failed):
            self.failures[event.room] = (event.reason, event.status)
            if REFUSAL in event.reason:
                assert self.world.asked[event.room].layout != self.layout, f"{event} by a decode that fits"

    def submit(self, write):
        assert self.world.asked[write.room].layout == self.layout, f"{write} to a decode that does not fit"
        self.waiting.append(write)

    def cancel(self, room):
        for write in [w for w in self.waiting if w.room == room]:
            self.waiting.remove(write)
            self.world.outcomes.append((self, Outcome(ticket=write.ticket, error="cancelled")))

    def add_peer(self, peer, metadata, pools):
        self.peers.add(peer)

    def forget_peer(self, peer):
        self.peers.discard(peer)

    def extend_lease(self, peer, until_s):
        self.leases[peer] = max(self.leases.get(peer, 0.0), until_s)

    def post(self, write):
        self.waiting.remove(write)
        memory = self.world.decode
        if write.peer not in self.peers or write.peer != memory.name:
            self.world.outcomes.append((self, Outcome(ticket=write.ticket, error="the peer has gone")))
            return
        memory.check_owned(write)
        self.running.append((write, self.world.now))

    def finish(self, write, ok):
        self.running = [(w, at) for w, at in self.running if w is not write]
        if write.peer == self.world.decode.name:
            self.world.decode.check_owned(write)
            self.world.decode.take(write)
        self.world.outcomes.append((self, Outcome(ticket=write.ticket, error="" if ok else "broke off")))


class DecodeSide:
    """A decode process: core, engine and memory."""

    def __init__(self, world, number, layout):
        self.world, self.name, self.layout = world, f"d{number}", layout
        self.core = DecodeCore(layout, POOLS, b"", CONFIG, self)
        self.page_owner = dict.fromkeys(range(PAGES))
        self.slot_owner = dict.fromkeys(range(SLOTS))
        self.content, self.reserved, self.links, self.lookups = {}, {}, set(), set()
        self.state, self.failures = {}, {}

    def look_up(self, place):
        self.lookups.add(place)

    def connect(self, instance, address):
        self.links.add(instance)

    def disconnect(self, instance):
        self.links.remove(instance)

    def send(self, instance, message):
        assert instance in self.links
        self.world.network.append(("prefill", instance, self.name, message))

    def probe(self, instance, address):
        if instance != self.world.prefill.name:
            self.world.deaths.append((self, instance))

    def expect_inbound(self, count):
        assert count >= 0

    def tell(self, event):
        state = self.state[event.room]
        match event:
            case Arrived():
                assert state in ("reserved", "cancelled"), f"{event} in {state}"
                memory = self.reserved[event.room]
                first = memory.prefix_len // PAGE
                wanted = [("page", event.room, first + i) for i in range(len(memory.pages))]
                assert [self.content.get(("page", p)) for p in memory.pages] == wanted
                assert self.content.get(("slot", memory.slot)) == ("slot", event.room)
                self.free(event.room)
                self.world.arrived += 1
            case Failed():
                assert state in ("announced", "reserved", "cancelled"), f"{event} in {state}"
                self.failures[event.room] = (event.reason, event.status)
                if state != "cancelled":
                    self.state[event.room] = "failed" if state == "reserved" else "over"
            case Released():
                assert state in ("failed", "cancelled"), f"{event} in {state}"
                self.free(event.room)

    def free(self, room):
        self.state[room] = "over"
        memory = self.reserved.pop(room)
        for page in memory.pages:
            self.page_owner[page] = None
        self.slot_owner[memory.slot] = None

    def allocate(self, room, prefix_len):
        needed = -(-PROMPT // PAGE) - prefix_len // PAGE
        pages = [page for page, owner in self.page_owner.items() if owner is None][:needed]
        slots = [slot for slot, owner in self.slot_owner.items() if owner is None]
        if len(pages) < needed or not slots:
            return None
        for page in pages:
            self.page_owner[page] = room
        self.slot_owner[slots[0]] = room
        self.reserved[room] = Memory(prefix_len, pages, slots[0])
        return self.reserved[room]

    def check_owned(self, write):
        owners = self.page_owner if write.pool == "pages" else self.slot_owner
        assert {owners[i] for i in write.remote_ids} == {write.room}, f"{write} hits memory of {owners}"

    def take(self, write):
        for local, remote in zip(write.local_ids, write.remote_ids, strict=True):
            what = ("page", write.room, local) if write.pool == "pages" else ("slot", write.room)
            self.content["page" if write.pool == "pages" else "slot", remote] = what


class World:
    """What happens, in an order drawn from `random`, and what must hold whatever happened."""

    def __init__(self, random, prefill=LAYOUT, decode=LAYOUT):
        self.random = random
        self.now = 0.0
        self.network, self.outcomes, self.deaths = [], [], []
        self.numbers = itertools.count()
        self.rooms = itertools.count(100)
        self.prefill = PrefillSide(self, next(self.numbers), prefill)
        self.decode = DecodeSide(self, next(self.numbers), decode)
        self.asked = {}
        """Room to the decode process that it was sent to, or will be."""
        self.arrived = 0

    def run(self, num_steps):
        names, weights = zip(*WEIGHTS.items(), strict=True)
        for name in self.random.choices(names, weights, k=num_steps):
            getattr(self, name)()
            self.check_memory()
        self.finish()

    # ---- requests

    def request_arrives(self):
        room = next(self.rooms)
        starts = []
        if self.random.random() < 0.9:
            starts.append(lambda: self.start_prefill(room))
        if self.random.random() < 0.9:
            starts.append(lambda: self.start_decode(room, self.random.random() < 0.3))
        self.random.shuffle(starts)
        for start in starts:
            start()

    def decode_finds_memory(self):
        announced = [room for room, state in self.decode.state.items() if state == "announced"]
        if announced:
            self.start_decode(self.random.choice(announced), False)

    def prefill_computes(self):
        open_rooms = [room for room, n in self.prefill.given.items() if n < 5 and room not in self.prefill.ended]
        if not open_rooms:
            return
        room = self.random.choice(open_rooms)
        first = self.prefill.given[room]
        pages = list(range(first, min(first + self.random.choice([1, 2, 4]), 4)))
        self.prefill.core.send_pages(room, first, pages, self.prefill.now)
        self.prefill.given[room] += len(pages)
        if self.prefill.given[room] == 4:
            self.prefill.given[room] = 5
            self.prefill.core.send_last(room, Record(0, 1, 0, b""), self.prefill.now)

    def prefill_gives_up(self):
        alive = [room for room in self.prefill.given if room not in self.prefill.ended]
        if alive:
            room = self.random.choice(alive)
            self.prefill.ended[room] = "engine"
            self.prefill.core.fail(room, "client gone", 499, self.prefill.now)

    def decode_gives_up(self):
        alive = [room for room, state in self.decode.state.items() if state in ("reserved", "announced")]
        if alive:
            room = self.random.choice(alive)
            self.decode.state[room] = "cancelled" if self.decode.state[room] == "reserved" else "over"
            self.decode.core.cancel(room, "client gone", self.now)

    # ---- the world

    def message_arrives(self):
        if self.network:
            self._deliver(self.network.pop(self.random.randrange(len(self.network))))

    def oldest_messages_arrive(self):
        self._exchange(6)

    def message_is_lost(self):
        if self.network:
            self.network.pop(self.random.randrange(len(self.network)))

    def all_messages_are_lost(self):
        self.network.clear()

    def message_is_repeated(self):
        if self.network:
            self.network.append(self.random.choice(self.network))

    def lookup_answers(self):
        self.answer_lookups(fails=self.random.random() < 0.1)

    def write_starts(self):
        ready = [write for write in self.prefill.waiting if self._may_post(write)]
        if ready:
            self.prefill.post(self.random.choice(ready))

    def write_ends(self):
        if self.prefill.running:
            self.prefill.finish(self.random.choice(self.prefill.running)[0], self.random.random() < 0.9)

    def outcome_is_seen(self):
        if self.outcomes:
            side, outcome = self.outcomes.pop(0)
            if side is self.prefill:
                side.core.outcome(outcome, side.now)

    def death_is_seen(self):
        if self.deaths:
            side, instance = self.deaths.pop(0)
            if side is self.decode and instance in side.links:
                side.core.dead(instance, "died", self.now)

    def time_passes(self):
        self.pass_time(self.random.choice([0.1, 0.5, 1.0]), self.random.random() < 0.9, self.random.random() < 0.9)

    def much_time_passes(self):
        self.pass_time(self.random.choice([3.0, 6.0]), self.random.random() < 0.5, self.random.random() < 0.5)

    def all_goes_well_for_a_while(self):
        self.run_world()

    def prefill_restarts(self, layout=None):
        self.outcomes = [(side, outcome) for side, outcome in self.outcomes if side is not self.prefill]
        self.prefill = PrefillSide(self, next(self.numbers), layout or self._some_layout())

    def decode_restarts(self, layout=None):
        self.decode = DecodeSide(self, next(self.numbers), layout or self._some_layout())

    # ---- claims

    def check_memory(self):
        for room, memory in self.decode.reserved.items():
            assert all(self.decode.page_owner[page] == room for page in memory.pages)

    def finish(self):
        """Once the network is whole again and time passes, every room ends and all memory returns."""
        for _ in range(120):
            self._settle_world()
            self.pass_time(0.5)
        self._settle_world()
        assert set(self.decode.state.values()) <= {"over"}, self.decode.state
        assert not self.decode.reserved and self.decode.core.num_live == self.decode.core.num_parting == 0
        assert set(self.decode.page_owner.values()) == {None}
        assert self.prefill.core.num_live == 0 and self.prefill.core.num_unacknowledged == 0
        unfinished = [room for room in self.prefill.given if room not in self.prefill.ended]
        assert not unfinished, unfinished
        assert not self.prefill.waiting and not self.prefill.running
        assert len(self.decode.links) <= 1

    def _some_layout(self):
        return LAYOUT if self.random.random() < 0.8 else OTHER_LAYOUT

    def start_prefill(self, room):
        self.asked.setdefault(room, self.decode)
        self.prefill.given[room] = 0
        self.prefill.core.expect(room, PROMPT, self.prefill.now)

    def start_decode(self, room, announce):
        side = self.decode
        self.asked[room] = side
        if announce:
            side.state[room] = "announced"
            side.core.announce(PLACE, room, PROMPT, self.now)
        elif memory := side.allocate(room, self.random.choice([0, 64, 192])):
            side.state[room] = "reserved"
            side.core.reserve(PLACE, room, memory, PROMPT, self.now)

    def _settle_world(self):
        for room, state in list(self.decode.state.items()):
            if state == "announced":
                self.decode.state[room] = "over"
                self.decode.core.cancel(room, "end", self.now)
        for room in list(self.prefill.given):
            if self.prefill.given[room] <= 4 and room not in self.prefill.ended:
                self.prefill.ended[room] = "engine"
                self.prefill.core.fail(room, "end", 500, self.prefill.now)
        self.run_world()
        self.talk()

    def talk(self, treat=lambda message: [message]):
        """Deliver until nobody says anything; while no time passes, that is soon. `treat` may lose or repeat."""
        for _ in range(TALK_ROUNDS):
            if not self.network:
                return
            batch, self.network = self.network, []
            for *envelope, message in batch:
                for each in treat(message):
                    self._deliver((*envelope, each))
        raise AssertionError(f"the talk does not end: {self.network[:4]}")

    def run_world(self):
        for _ in range(4):
            self.answer_lookups()
            self._exchange(len(self.network))
            for write in list(self.prefill.waiting):
                self.prefill.post(write) if self._may_post(write) else None
            for write, _ in list(self.prefill.running):
                self.prefill.finish(write, True)
            while self.outcomes:
                self.outcome_is_seen()
            while self.deaths:
                self.death_is_seen()

    def _may_post(self, write):
        side = self.prefill
        return side.now <= side.leases.get(write.peer, 0.0) or write.peer not in side.peers

    def _exchange(self, count):
        for _ in range(min(count, len(self.network))):
            self._deliver(self.network.pop(0))

    def _deliver(self, envelope):
        kind, to, sender, message = envelope
        if kind == "prefill":
            self.prefill.core.receive(sender, message, self.prefill.now)
        elif to == self.decode.name:
            for link in list(self.decode.links):
                if link == sender or message.sender != link:
                    self.decode.core.receive(link, message, self.now)
                    break

    def answer_lookups(self, fails=False):
        for place in list(self.decode.lookups):
            self.decode.lookups.remove(place)
            if fails:
                self.decode.core.not_found(place, "nobody", self.now)
            else:
                endpoint = Endpoint(address="tcp://host:2", layout_hash="", instance=self.prefill.name)
                self.decode.core.found(place, endpoint, self.now)

    def pass_time(self, seconds, decode_looks=True, prefill_looks=True):
        """Writes take at most the half of the acknowledgement time that the lease leaves them."""
        for write, posted_s in list(self.prefill.running):
            if self.now + seconds >= posted_s + CONFIG.abort_ack_timeout_s / 2:
                self.prefill.finish(write, True)
        self.now += seconds
        if decode_looks:
            self.decode.core.tick(self.now)
        if prefill_looks:
            self.prefill.core.tick(self.prefill.now)
