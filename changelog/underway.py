"""Transactions that were begun: over at once, or at work on a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samovar.changelog.log import TopicPartition


@dataclass(frozen=True)
class Over:
    """One that is over."""

    found: Mapping[TopicPartition, int]
    took_s: float

    def wait(self, _seconds: float) -> bool:
        return True

    def ends(self) -> Mapping[TopicPartition, int]:
        return self.found


class OnThread:
    """One that goes on beside its container's loop. `settle` is told by whoever asks for its end what it raised."""

    def __init__(
        self, call: Callable[[], None], settle: Callable[[BaseException | None], Mapping[TopicPartition, int]]
    ) -> None:
        self._settle = settle
        self._raised: BaseException | None = None
        self._is_over = threading.Event()
        self.took_s = 0.0
        threading.Thread(target=self._run, args=(call,), name="samovar-transaction", daemon=True).start()

    def _run(self, call: Callable[[], None]) -> None:
        begun_s = time.monotonic()
        try:
            call()
        except BaseException as error:
            self._raised = error
        finally:
            self.took_s = time.monotonic() - begun_s
            self._is_over.set()

    def wait(self, seconds: float) -> bool:
        return self._is_over.wait(seconds)

    def ends(self) -> Mapping[TopicPartition, int]:
        self._is_over.wait()
        return self._settle(self._raised)
