"""Splits a byte stream into server-sent events, however the network cut it.

Knows nothing of JSON or tokens. An event's payload is its `data` lines joined by newlines, as bytes, so that a UTF-8
character cut in two by the network is whole again here. LF, CRLF and CR end a line; comments and other fields are
dropped.
"""


class SseSplitter:
    """Feed it what arrived; it gives the payloads of the events that are now complete."""

    __slots__ = ("_data", "_rest", "_skip_lf")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._skip_lf = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Payloads completed by `chunk`, in order."""
        if not self._rest and not self._data and chunk.startswith(b"data: ") and chunk.endswith(b"\n\n"):
            body = chunk[6:-2]
            if b"\n" not in body and b"\r" not in body:  # the usual case: exactly one event
                self._skip_lf = False
                return [body]
        return self._feed_lines(chunk)

    @property
    def is_clean(self) -> bool:
        """Whether the stream may end here: no event is half received."""
        return not self._rest and not self._data

    def _feed_lines(self, chunk: bytes) -> list[bytes]:
        if self._skip_lf and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_lf = False
        text = self._rest + chunk
        if text.endswith(b"\r"):
            self._skip_lf = True
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        events: list[bytes] = []
        for line in lines:
            self._take_line(line, events)
        return events

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data = []
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
