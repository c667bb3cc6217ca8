"""The link to a worker that answers no more."""

import asyncio

import pytest

from stack.core import messages
from stack.server.link import Link, LinkError


def test_calls_end_when_the_worker_answers_no_more(tmp_path):
    async def poll() -> None:
        link = Link(tmp_path, lambda message: None)
        waiting = asyncio.create_task(link.call(lambda call: messages.GetStats(call=call), None))
        await asyncio.sleep(0)
        link.end_calls("this instance has been drained")
        for call in (waiting, link.call(lambda call: messages.GetStats(call=call), None)):
            with pytest.raises(LinkError, match="this instance has been drained"):
                await asyncio.wait_for(call, 5)
        link.close()

    asyncio.run(poll())
