"""A network of ours between a container and its broker, which loses exactly the message that it is told to lose.

It knows as much of Kafka's protocol as that takes: every message begins with its size (4 bytes, big end first); a
request goes on with its api (2), version (2) and correlation id (4), a reply with the correlation id of its request.
A broker tells clients its own address; in replies that is made the proxy's, which changes no length.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Literal

HOST = "127.0.0.1"
SIZE = struct.Struct(">i")
REQUEST = struct.Struct(">hhi")
APIS = {"Produce": 0, "AddOffsetsToTxn": 25, "EndTxn": 26, "TxnOffsetCommit": 28}

# reply: the request arrives, its reply does not, and the connection breaks; the client may ask again.
# silence: the request arrives, and from then on nothing gets through, until `light`.
# request: the same, but the request does not arrive either.
Way = Literal["reply", "silence", "request"]


@dataclass
class Fault:
    api: int
    way: Way
    happened: threading.Event = field(default_factory=threading.Event)


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
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, api: str, way: Way) -> threading.Event:
        """Arm it; the event is set once it has happened."""
        fault = Fault(APIS[api], way)
        with self._lock:
            self._fault = fault
        return fault.happened

    def light(self) -> None:
        """The network is whole again; connections of before are gone."""
        with self._lock:
            self._dark = False
        self._cut()

    def close(self) -> None:
        self._listening.close()
        self._cut()

    def _cut(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            broker = socket.create_connection(self._broker)
        except OSError:
            client.close()
            return
        with self._lock:
            self._sockets |= {client, broker}
        asked: dict[int, int] = {}  # correlation id to api
        back = threading.Thread(target=self._replies, args=(broker, client, asked), daemon=True)
        back.start()
        with closing(broker), closing(client), suppress(OSError):
            for message in messages(client):
                api, _, correlation = REQUEST.unpack_from(message)
                asked[correlation] = api
                if self._passes(api, "request"):
                    broker.sendall(SIZE.pack(len(message)) + message)
            broker.shutdown(socket.SHUT_RDWR)
            back.join()

    def _replies(self, broker: socket.socket, client: socket.socket, asked: dict[int, int]) -> None:
        with suppress(OSError):
            for message in messages(broker):
                (correlation,) = SIZE.unpack_from(message)
                if self._passes(asked.pop(correlation, -1), "reply"):
                    client.sendall(SIZE.pack(len(message)) + message.replace(self._theirs, self._ours))
                elif not self._dark:
                    break  # one reply is lost, and the connection with it
            client.shutdown(socket.SHUT_RDWR)

    def _passes(self, api: int, what: Literal["request", "reply"]) -> bool:
        with self._lock:
            fault = self._fault
            if fault is None or fault.api != api or (what == "request") != (fault.way == "request"):
                return not self._dark
            self._fault = None
            self._dark = fault.way != "reply"
            fault.happened.set()
            return False


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
