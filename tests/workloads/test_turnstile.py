"""One request goes on the wire at a time, in the order of asking; nobody waits behind a cancelled or a stuck one."""

import asyncio

from workloads.turnstile import HOLD_S, Turnstile


def test_starts_are_in_order_and_one_a_turn():
    async def run():
        gate, order, turns = Turnstile(), [], [0]

        def count():
            turns[0] += 1
            asyncio.get_running_loop().call_soon(count)

        async def start(i):
            passed = await gate.turn()
            order.append((i, turns[0]))
            passed()

        tasks = [asyncio.create_task(start(i)) for i in range(20)]
        count()
        await asyncio.gather(*tasks)
        return order

    order = asyncio.run(run())
    assert [i for i, _ in order] == list(range(20))
    assert len({turn for _, turn in order}) == 20


def test_a_cancelled_one_is_passed_over():
    async def run():
        gate = Turnstile()
        first, second, third = (asyncio.create_task(gate.turn()) for _ in range(3))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait_for(asyncio.gather(first, third), 1)
        return second.cancelled() or second.cancelling()

    assert asyncio.run(run())


def test_the_next_one_waits_until_the_body_before_it_is_written():
    async def run():
        gate, seen = Turnstile(), []

        async def start(i, seconds):
            passed = await gate.turn()
            seen.append(f"begin {i}")
            await asyncio.sleep(seconds)
            seen.append(f"end {i}")
            passed()

        await asyncio.gather(*(start(i, 0.01) for i in range(3)))
        return seen

    assert asyncio.run(run()) == [f"{what} {i}" for i in range(3) for what in ("begin", "end")]


def test_a_body_that_nobody_takes_delays_the_others_shortly():
    async def run():
        gate, loop = Turnstile(), asyncio.get_running_loop()
        began = loop.time()
        await gate.turn()  # and never on the wire
        await asyncio.wait_for(gate.turn(), 1)
        return loop.time() - began

    assert HOLD_S * 0.9 <= asyncio.run(run()) < 10 * HOLD_S
