"""What can go wrong with one call of a simulated client."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import TypeAlias


class Fault(Enum):
    """What happens to a call. A call that it makes no sense for goes on as if there were none.

    The calls of a log have their own names (`topics`, `bounds`, `committed`, `append`, `join`, `read`, ...), those of a
    member are `poll`, `close` and `leave`; `transact` is the whole of a transaction, and `produce`, `offsets` and
    `commit` are its requests.
    """

    TIMEOUT_BEFORE = auto()  # no answer, and it did not happen; of a `commit`, nobody can say so
    TIMEOUT_AFTER = auto()  # no answer, and it did happen
    SLOW = auto()  # time passes first
    CRASH_BEFORE = auto()
    CRASH_MIDDLE = auto()  # some of the records of `transact`, `produce` or `append` are written
    CRASH_AFTER = auto()
    NOTHING = auto()  # `poll` and `read` give nothing, and nothing is learned about the end of the log
    LATE_MARKERS = auto()  # `commit` is decided and answered; readers and the group see it later


Faults: TypeAlias = Callable[[str], Fault | None]  # by the name of a call


class Killed(BaseException):
    """The process that made this call is dead. Nothing it does afterwards reaches the cluster."""
