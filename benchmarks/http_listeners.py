"""Many listeners on live alerts, in one process: `python -m benchmarks.http_listeners URL COUNT`, until SIGTERM.

At its end it prints what each heard, how long after its event the first listener heard an alert, and how many were cut
off before. Browsers are on machines of their own; these are not, so they do as little as can be: bytes are read and
counted, and only the first listener's are looked into.
"""

from __future__ import annotations

import json
import re
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

AT = re.compile(rb'"at":(\d+)')
MARK = b"\nevent: alert\n"
READ_BYTES = 1 << 20
REST_S = 0.005  # between two looks, so that what is sent to all is read together


@dataclass
class Listener:
    """One connection, with the end of what it read: a mark may come in two pieces."""

    socket: socket.socket
    end: bytes = b""
    heard: int = 0
    is_ended: bool = False
    delays_ms: list[float] | None = None  # noted of the first one only
    _texts: bytes = field(default=b"", repr=False)

    def read(self) -> None:
        data = self.socket.recv(READ_BYTES)
        self.is_ended = not data
        self.heard += (self.end + data).count(MARK)
        self.end = (self.end + data)[1 - len(MARK) :]
        if self.delays_ms is not None:
            self._note(data, self.delays_ms)

    def _note(self, data: bytes, delays_ms: list[float]) -> None:
        whole, _, self._texts = (self._texts + data).rpartition(b"\n")
        delays_ms += [time.time() * 1000 - int(found[1]) for found in AT.finditer(whole)]


def opened(parts: SplitResult, number: int) -> Listener:
    made = socket.create_connection((parts.hostname, parts.port))
    made.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode())
    return Listener(made, delays_ms=None if number else [])


def let_in(listener: Listener) -> None:
    first = listener.socket.recv(READ_BYTES)
    if b" 200 " not in first.partition(b"\r\n")[0]:
        raise SystemExit(f"not let in: {first[:200]!r}")


class Ending:
    """Whether SIGTERM came."""

    def __init__(self) -> None:
        self.is_near = False
        signal.signal(signal.SIGTERM, self._near)

    def _near(self, *_: object) -> None:
        self.is_near = True


def main(url: str, count: int) -> None:
    ending, parts = Ending(), urlsplit(url)
    listeners = [opened(parts, number) for number in range(count)]
    for listener in listeners:
        let_in(listener)
    print(f"{count} listen", flush=True)
    with selectors.DefaultSelector() as selector:
        for listener in listeners:
            selector.register(listener.socket, selectors.EVENT_READ, listener)
        while not ending.is_near and selector.get_map():
            for key, _ in selector.select(0.1):
                key.data.read()
                if key.data.is_ended:
                    selector.unregister(key.fileobj)
            time.sleep(REST_S)
    told = {
        "heard": [each.heard for each in listeners],
        "delays_ms": listeners[0].delays_ms,
        "ended": sum(each.is_ended for each in listeners),
    }
    print(f"heard {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
