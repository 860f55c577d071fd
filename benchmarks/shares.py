"""Where a container's time goes, as shares of the whole.

    python -m benchmarks.shares CONFIG

Runs a service until it is caught up, in this process, with a watch on the parts of its loop; prints seconds as JSON.
Time in which a part calls another part counts for the inner one alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from samovar.changelog.kafka import member
from samovar.service.config.loading import load_service
from samovar.service.runtime import running
from samovar.service.topology.logs import opened
from samovar.state.rocks import RocksStore
from samovar.tasks.input import source
from samovar.tasks.rules import processor, state_cache
from samovar.tasks.runtime import stream_task

PARTS: list[tuple[Any, str, str]] = [
    (member.KafkaMember, "poll", "poll"),
    (source.StreamSource, "decode", "decode"),
    (source, "order", "order"),
    (state_cache, "find_matches", "match"),
    (RocksStore, "prefixes", "state, read"),
    (state_cache.StateCache, "_load", "state, read"),
    (state_cache.StateCache, "changes", "state, changed rows"),
    (RocksStore, "write", "state, write"),
    (member.KafkaMember, "transact", "commit"),
    (processor.RuleProcessor, "outcome", "other"),
    (stream_task.StreamTask, "feed", "other"),
]


class Watch:
    """The source of truth for how long each part took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[list[float]] = []  # of each part that is under way, what inner parts took

    def on(self, owner: Any, name: str, part: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        @wraps(plain)
        def timed(*given: Any, **named: Any) -> Any:
            begun, inner = time.perf_counter(), [0.0]
            self._open.append(inner)
            try:
                return plain(*given, **named)
            finally:
                self._open.pop()
                took = time.perf_counter() - begun
                self.seconds[part] = self.seconds.get(part, 0.0) + took - inner[0]
                if self._open:
                    self._open[-1][0] += took

        setattr(owner, name, timed)


def main(config: Path) -> None:
    watch = Watch()
    for part in PARTS:
        watch.on(*part)
    settings = load_service(config)
    with opened(settings) as log:
        container = running.container_of(settings, log, 0, lambda _: None)
        begun = time.perf_counter()
        counts = container.run(until_caught_up=True)
        whole = time.perf_counter() - begun
    known = sum(watch.seconds.values())
    watch.seconds["other"] = watch.seconds.get("other", 0.0) + whole - known
    print(json.dumps({"events": counts.events, "seconds": watch.seconds}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
