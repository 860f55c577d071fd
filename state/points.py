"""Named points on the way of a batch at which a test may end the process: a crash there must cost nothing.

`SAMOVAR_KILL=commit.after:3` ends the process with SIGKILL the third time that it passes `commit.after`. Without that
variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "produce.before",
    "produce.after",
    "offsets.before",
    "offsets.after",
    "commit.before",
    "commit.after",
    "write.before",
    "write.after",
    "snapshot.before",
    "snapshot.after",
    "restore.before",
    "restore.after",
)


class UnknownPointError(ValueError):
    """SAMOVAR_KILL names no point."""


def _armed(setting: str) -> tuple[str, int]:
    name, _, count = setting.partition(":")
    if name and name not in POINTS:
        raise UnknownPointError(f"SAMOVAR_KILL={setting}: no such point\n  Points are {', '.join(POINTS)}.")
    return name, int(count or 1)


_name, _left = _armed(os.environ.get("SAMOVAR_KILL", ""))


def passing(name: str) -> None:
    """Say that the process is at this point."""
    global _left  # noqa: PLW0603 - the count belongs to the process, as the crash does
    if name != _name:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
