"""The control thread ends in order: what was asked, then the last words, and nothing after them."""

import time

from stack.disagg.loop import SocketLoop


def test_nothing_ticks_after_the_last_words():
    for _ in range(20):
        said = []
        loop = SocketLoop("test", lambda said=said: said.append("tick"), 0.001)
        loop.start()
        time.sleep(0.003)
        loop.call(lambda said=said: said.append("asked"))
        loop.close(lambda said=said: said.append("last"), lambda said=said: said.append("words"))
        assert said[-2:] == ["last", "words"]
        assert "asked" in said and "tick" in said
        loop.check()
