"""One start in each turn of the loop, in the order of asking, and nobody waits behind a cancelled one."""

import asyncio

from workloads.turnstile import Turnstile


def test_starts_are_in_order_and_one_a_turn():
    async def run():
        gate, order, turns = Turnstile(), [], [0]

        def count():
            turns[0] += 1
            asyncio.get_running_loop().call_soon(count)

        async def start(i):
            await gate.turn()
            order.append((i, turns[0]))

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
