"""What went wrong in a user's code, in words for a dead letter: class, message, and the line that was running."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

MOST_CHARACTERS = 4_000
OURS = Path(__file__).resolve().parent.parent  # frames in here are not the user's


@dataclass(frozen=True)
class Fault:
    """`message` is one line; `trace` begins where the user's code was called."""

    message: str
    trace: str


def fault_of(error: BaseException) -> Fault:
    frames = traceback.extract_tb(error.__traceback__)
    first = next((place for place, frame in enumerate(frames) if not _is_ours(frame)), len(frames))
    theirs = [frame for frame in frames[first:] if not _is_ours(frame)]
    said = "".join(traceback.format_exception_only(error)).strip()
    where = ""
    if theirs:
        last = theirs[-1]
        where = f" ({Path(last.filename).name}:{last.lineno} in {last.name})"
    trace = "".join(traceback.format_list(frames[first:])) + said
    return Fault(said[:MOST_CHARACTERS] + where, trace[-MOST_CHARACTERS:])


def _is_ours(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename).resolve()
    return path.parent.parent == OURS and path.parent.name in ("state", "tasks")
