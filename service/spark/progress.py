"""How far a job on Spark is: a line that is written over on a terminal, a line now and then elsewhere, or JSON."""

from __future__ import annotations

import json
import time
from typing import IO

from samovar.changelog.spark.progress import JobProgress

EVERY_S = 5.0
JSON_EVERY_S = 1.0


class ProgressDisplay:
    """Used as a context, so that the terminal is whole again afterwards. As JSON, one object per line."""

    def __init__(self, err: IO[str], *, as_json: bool = False) -> None:
        self._err, self._as_json = err, as_json
        self._on_terminal = err.isatty() and not as_json
        self._told = time.monotonic()
        self._shown = False

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, now: JobProgress) -> None:
        if self._on_terminal:
            self._err.write(f"\r\x1b[K{now.text()}")
            self._shown = True
        elif time.monotonic() - self._told >= (JSON_EVERY_S if self._as_json else EVERY_S):
            self._told = time.monotonic()
            self._err.write((json.dumps({"progress": now.data()}) if self._as_json else now.text()) + "\n")
        self._err.flush()

    def say(self, text: str) -> None:
        """A line that stays, as where Spark's pages are."""
        self.clear()
        self._err.write((json.dumps({"spark": text}) if self._as_json else text) + "\n")
        self._err.flush()

    def clear(self) -> None:
        if self._shown:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._shown = False
