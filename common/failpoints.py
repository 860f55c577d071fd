"""Named points on the way of a batch at which a test may end the process: a crash there must cost nothing.

`SAMOVAR_KILL=commit.after:3` ends the process with SIGKILL the third time that it passes `commit.after`;
`SAMOVAR_KILL=commit.after:3:SIGSTOP` sends it that signal instead. Without that variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

POINTS = tuple(
    "produce.before produce.after offsets.before offsets.after flush.after commit.before commit.after write.before"
    " write.after snapshot.before snapshot.after restore.before restore.after".split()
)
# Passed only when partitions come and go.
MOVES = ("revoke.before", "revoke.after", "assign.after")
# Passed only where published rules change.
SWITCHES = ("switch.before", "switch.sent", "switch.after")
# Passed only when a view is published.
VIEWS = ("publish.before", "publish.between", "publish.committed", "publish.after")
# Passed only by the export of a table.
EXPORTS = ("export.before", "export.reading", "export.after")
# Passed only by a repartition.
REPARTITIONS = tuple(
    f"repartition.{point}" for point in ("copied", "fenced", "ready", "deleted", "made", "filled", "switched", "done")
)
# Passed only by a repartition on Spark.
SPREADS = ("repartition.spread",)
# Passed only by those who copy into an archive.
ARCHIVES = ("archive.written", "archive.published")


class UnknownPointError(ValueError):
    """SAMOVAR_KILL names no point."""


def _parse_setting(setting: str) -> tuple[str, int, signal.Signals]:
    name, count, sent = (*setting.split(":"), "", "")[:3]
    known = POINTS + MOVES + SWITCHES + VIEWS + EXPORTS + REPARTITIONS + SPREADS + ARCHIVES
    if name and name not in known:
        raise UnknownPointError(f"SAMOVAR_KILL={setting}: no such point\n  Points are {', '.join(known)}.")
    return name, int(count or 1), signal.Signals[sent or "SIGKILL"]


on_pass: Callable[[str], None] | None = None  # a simulator's: it is told of every point
_name, _left, _signal = _parse_setting(os.environ.get("SAMOVAR_KILL", ""))


def is_armed(name: str) -> bool:
    """Whether the process is to be ended at this point, now or later: then it must come there in a known state."""
    return name == _name


def hit(name: str) -> None:
    """Say that the process is at this point."""
    global _left  # noqa: PLW0603 - the count belongs to the process, as the crash does
    if on_pass is not None:
        on_pass(name)
    if name != _name:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), _signal)
