"""Calls of the Kafka client that may not come back by themselves.

librdkafka's send_offsets_to_transaction does not look at its timeout while it waits for the group's coordinator, and
waits for ever where the connection broke under it (its issues 5456 and 5511). So it is called on a thread of its own:
what has not come back by the deadline is left behind, together with its producer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

GRACE_S = 0.5  # for a client that does look at its timeout


class NoAnswerError(Exception):
    """The call did not come back. Its client must not be used again."""


def watched(call: Callable[[float], object], seconds: float) -> None:
    """Do this within so many seconds, and raise what it raised."""
    raised: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            call(seconds)
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="samovar-kafka-call", daemon=True).start()
    if not done.wait(seconds + GRACE_S):
        raise NoAnswerError(f"no answer within {seconds + GRACE_S:.1f} s")
    if raised:
        raise raised[0]
