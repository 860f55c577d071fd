"""A network of ours between a container and its broker, which loses exactly the message that it is told to lose, is as
slow as it is told to be, and has connections whose other end is gone without a word.

It knows as much of Kafka's protocol as that takes: every message begins with its size (4 bytes, big end first); a
request goes on with its api (2), version (2) and correlation id (4), a reply with the correlation id of its request.
A broker tells clients its own address; in replies that is made the proxy's, which changes no length.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from random import Random
from typing import Literal

HOST = "127.0.0.1"
SIZE = struct.Struct(">i")
REQUEST = struct.Struct(">hhi")
APIS = {
    "Produce": 0,
    "Fetch": 1,
    "ListOffsets": 2,
    "Heartbeat": 12,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
}
CLOSE_S = 5.0

# reply: the request arrives, its reply does not, and the connection breaks; the client may ask again.
# silence: the request arrives, and from then on nothing gets through, until `light`.
# request: the same, but the request does not arrive either.
Way = Literal["reply", "silence", "request"]
Leg = Literal["request", "reply"]  # to the broker, and back
BOTH: tuple[Leg, ...] = ("request", "reply")


@dataclass
class Fault:
    api: int
    way: Way
    happened: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Delay:
    """Of one leg: each message takes this time and, at random, up to `jitter_s` more. None overtakes another."""

    latency_s: float = 0.0
    jitter_s: float = 0.0

    def draw(self, random: Random) -> float:
        return self.latency_s + random.uniform(0.0, self.jitter_s)


class Line:
    """One leg of one connection: what is sent arrives after a delay, in order."""

    def __init__(self, to: socket.socket, delay_s: Callable[[], float]) -> None:
        self._to, self._delay_s = to, delay_s
        self._due_s = 0.0
        self._sent: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        self._due_s = max(self._due_s, time.monotonic() + self._delay_s())
        self._sent.put((self._due_s, data))

    def end(self) -> None:
        """Nothing more is sent; what was arrives, unless the other end is gone."""
        self._sent.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._sent.get()) is not None:
            due_s, data = item
            time.sleep(max(due_s - time.monotonic(), 0.0))
            with suppress(OSError):
                self._to.sendall(data)


@dataclass(eq=False)
class Connection:
    """A client's connection and the one to the broker that stands for it."""

    client: socket.socket
    broker: socket.socket
    asked: dict[int, int] = field(default_factory=dict)  # correlation id to api
    apis: set[int] = field(default_factory=set)
    silent: frozenset[Leg] = frozenset()
    swallowed: threading.Event = field(default_factory=threading.Event)

    def swallows(self, leg: Leg) -> bool:
        """Whether what goes this way is gone; to the ends it looks as if it had been sent."""
        if leg in self.silent:
            self.swallowed.set()
        return leg in self.silent

    def shut(self) -> None:
        for each in (self.client, self.broker):
            shut(each)

    def close(self) -> None:
        self.client.close()
        self.broker.close()


class Proxy:
    """The source of truth for what gets through."""

    def __init__(self, broker: str) -> None:
        host, _, port = broker.rpartition(":")
        self._broker = host, int(port)
        self._listening = socket.create_server((HOST, 0))
        self.address = f"{host}:{self._listening.getsockname()[1]}"
        told = host.encode()
        self._theirs = told + SIZE.pack(int(port))
        self._ours = told + SIZE.pack(self._listening.getsockname()[1])
        self._fault: Fault | None = None
        self._dark = False
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
        self._threads: set[threading.Thread] = set()
        self._delays: dict[Leg, Delay] = {}
        self._random = Random(1)
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, api: str, way: Way) -> threading.Event:
        """Arm it; the event is set once it has happened."""
        fault = Fault(APIS[api], way)
        with self._lock:
            self._fault = fault
        return fault.happened

    def delay(self, request: Delay, reply: Delay) -> None:
        """How slow the network is from now on."""
        self._delays = {"request": request, "reply": reply}

    def half_open(self, legs: Collection[Leg] = BOTH, api: str | None = None) -> threading.Event:
        """Connections of now, or those of them that were asked this, lose all that goes these ways, and neither end is
        told. New connections work. The event is set once something was lost.
        """
        swallowed = threading.Event()
        with self._lock:
            for each in self._connections:
                if api is None or APIS[api] in each.apis:
                    each.swallowed, each.silent = swallowed, frozenset(legs)
        return swallowed

    def light(self) -> None:
        """The network is whole again; connections of before are gone."""
        with self._lock:
            self._dark = False
        self._cut()

    def close(self) -> None:
        self._listening.close()
        self._delays = {}
        self._cut()
        for thread in list(self._threads):
            thread.join(CLOSE_S)

    def _cut(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, set()
        for each in connections:
            each.shut()

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                thread = threading.Thread(target=self._connect, args=(client,), daemon=True)
                thread.start()
                self._threads.add(thread)

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self._broker)
        except OSError:
            client.close()
            return
        connection = Connection(client, broker)
        with self._lock:
            self._connections.add(connection)
        back = threading.Thread(target=self._replies, args=(connection,), daemon=True)
        back.start()
        self._requests(connection)
        back.join()
        with self._lock:
            self._connections.discard(connection)
        connection.close()

    def _requests(self, connection: Connection) -> None:
        line = Line(connection.broker, lambda: self._delay_s("request"))
        with suppress(OSError):
            for message in messages(connection.client):
                api, _, correlation = REQUEST.unpack_from(message)
                connection.asked[correlation] = api
                connection.apis.add(api)
                if self._passes(api, "request") and not connection.swallows("request"):
                    line.send(SIZE.pack(len(message)) + message)
        line.end()
        if "request" not in connection.silent:  # a broker whose client is gone without a word waits for it
            shut(connection.broker)

    def _replies(self, connection: Connection) -> None:
        line = Line(connection.client, lambda: self._delay_s("reply"))
        with suppress(OSError):
            for message in messages(connection.broker):
                (correlation,) = SIZE.unpack_from(message)
                if not self._passes(connection.asked.pop(correlation, -1), "reply"):
                    if not self._dark:
                        break  # one reply is lost, and the connection with it
                elif not connection.swallows("reply"):
                    line.send(SIZE.pack(len(message)) + message.replace(self._theirs, self._ours))
        line.end()
        if "reply" not in connection.silent:
            shut(connection.client)

    def _delay_s(self, leg: Leg) -> float:
        return self._delays.get(leg, Delay()).draw(self._random)

    def _passes(self, api: int, what: Leg) -> bool:
        with self._lock:
            fault = self._fault
            if fault is None or fault.api != api or (what == "request") != (fault.way == "request"):
                return not self._dark
            self._fault = None
            self._dark = fault.way != "reply"
            fault.happened.set()
            return False


def shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def messages(source: socket.socket) -> Iterator[bytes]:
    """Whole messages, without their sizes, until the connection ends."""
    while (head := exactly(source, SIZE.size)) is not None:
        body = exactly(source, SIZE.unpack(head)[0])
        if body is None:
            return
        yield body


def exactly(source: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
