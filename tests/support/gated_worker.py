"""Spark's Python daemon with a gate: the first worker that comes to it stands still in the middle of its task.

`SAMOVAR_GATE` is a file. While it is there the gate is shut; the worker that is held renames it to `held-PID`, so that
it is one, and waits until it is killed. Where it stands, one batch has been read or written, and others have not; or
it is at the failpoint whose name is in that file.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.daemon import manager
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from samovar.common import failpoints

load_stream: Any = ArrowStreamSerializer.load_stream
dump_stream: Any = ArrowStreamSerializer.dump_stream


def gated(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch
        come("")


def come(point: str) -> None:
    gate = Path(os.environ.get("SAMOVAR_GATE", "/nowhere"))
    try:
        if gate.read_text() == point:
            gate.rename(gate.with_name(f"held-{os.getpid()}"))
            signal.pause()
    except FileNotFoundError:
        return


if __name__ == "__main__":
    patched: Any = ArrowStreamSerializer
    failpoints.on_pass = come
    patched.load_stream = lambda self, stream: gated(load_stream(self, stream))
    patched.dump_stream = lambda self, batches, stream: dump_stream(self, gated(batches), stream)
    start: Any = manager
    start()
