"""Stores of this machine's containers, open to read and shared: opening one reads all of its newest log again.

Always a secondary instance, never the container's own handle. What is given is at most FRESH_S old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samovar.state.reading import MB, RocksMemory
from samovar.state.secondary import SecondaryStore

FRESH_S = 0.5
IDLE_S = 30.0
MOST_OPEN = 64


@dataclass(eq=False)
class _Open:
    store: SecondaryStore
    at_s: float
    users: int = 0
    is_old: bool = False


class StorePool:
    """The source of truth for which stores are open to read, and who reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[Path, threading.Lock] = {}
        self._open: dict[Path, _Open] = {}
        self._memory = RocksMemory(cache_bytes=64 * MB, write_buffer_bytes=16 * MB)  # of all of them together

    @contextmanager
    def reading(self, folder: Path) -> Iterator[SecondaryStore]:
        held = self._take(folder)
        try:
            yield held.store
        finally:
            self._give_back(held)

    def close(self) -> None:
        with self._lock:
            for folder in list(self._open):
                self._retire(folder)

    def _take(self, folder: Path) -> _Open:
        with self._lock:
            found = self._fresh(folder)
            if found is not None:
                return found
            opening = self._opening.setdefault(folder, threading.Lock())
        with opening:  # others wait for the one who opens it, and share it
            with self._lock:
                found = self._fresh(folder)
                if found is not None:
                    return found
                found = self._open.get(folder)
                if found is not None:
                    found.users += 1  # nobody closes it meanwhile
            now_s, is_followed = time.monotonic(), False
            if found is not None:  # with what was written since, unless it must be opened again
                try:
                    is_followed = found.store.follow()
                finally:
                    if not is_followed:
                        self._give_back(found)
                if is_followed:
                    found.at_s = now_s
                    return found
            made = _Open(SecondaryStore(folder, memory=self._memory), time.monotonic(), 1)
            with self._lock:
                self._retire(folder)
                self._open[folder] = made
                for other, each in list(self._open.items()):
                    if time.monotonic() - each.at_s > IDLE_S or len(self._open) > MOST_OPEN:
                        self._retire(other)
            return made

    def _fresh(self, folder: Path) -> _Open | None:
        found = self._open.get(folder)
        if found is None or time.monotonic() - found.at_s > FRESH_S:
            return None
        found.users += 1
        return found

    def _give_back(self, held: _Open) -> None:
        with self._lock:
            held.users -= 1
            if held.is_old and not held.users:
                held.store.close()

    def _retire(self, folder: Path) -> None:
        before = self._open.pop(folder, None)
        if before is not None:
            before.is_old = True
            if not before.users:
                before.store.close()
