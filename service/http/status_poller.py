"""How the service is doing, looked at every second or two by a thread of its own, so that a request never waits for it.

The newest look is what /status, /ready and /caught-up answer with; the looks of the last half hour make its curves.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from samovar.changelog.formats.heartbeat import MemberMetadata
from samovar.changelog.log import Log
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.service.config.models import ServiceFile
from samovar.service.ops.status import ServiceStatus, status_of

LOOK_EVERY_S = 2.0
KEPT = 900  # looks: half an hour
RATE_OVER_S = 10.0
CLOSE_S = 5.0
OLD_S = 15.0  # a look older than this says nothing about now
CAUGHT_UP_S = 10.0  # behind by no more than this is caught up: records that are just coming are always there


@dataclass(frozen=True)
class StatusSnapshot:
    """One look at the service."""

    at_s: float  # monotonic
    status: ServiceStatus

    @property
    def presences(self) -> list[MemberMetadata]:
        known = [each.metadata for each in self.status.containers if each.state in ("running", "silent")]
        return [each for each in known if each is not None]

    @property
    def is_caught_up(self) -> bool:
        """Everything runs, and nothing waits for long."""
        return self.status.runs and all(task.behind_s <= CAUGHT_UP_S for task in self.status.tasks)

    @property
    def counts(self) -> Counter[str]:
        """Sums over the containers that run."""
        total: Counter[str] = Counter()
        for each in self.presences:
            total.update(each.counts)
        return total

    def sample(self, before: StatusSnapshot) -> dict[str, Any]:
        told = self.status.data()
        figures = {name: told[name] for name in ("lag", "behind_s", "watermark_age_s")}
        return {"time": self.status.time_ms, **rates_of(before, self), **figures}


def rates_of(before: StatusSnapshot | None, after: StatusSnapshot) -> dict[str, float]:
    """What was counted a second, container by container: one that began again counts from nothing."""
    names = {"events": "events", "matches": "alerts", "late": "late", "dead": "dead"}
    if before is None or after.at_s <= before.at_s:
        return {f"{name}_per_s": 0.0 for name in names.values()}
    passed = after.at_s - before.at_s
    known = {(each.slot, each.pid, each.since_ms): each.counts for each in before.presences}
    found = dict.fromkeys(names, 0)
    for each in after.presences:
        began = known.get((each.slot, each.pid, each.since_ms), {})
        if began or each.since_ms > before.status.time_ms:  # else it was away for a while, and counted all the time
            for count in names:
                found[count] += max(each.counts.get(count, 0) - began.get(count, 0), 0)
    return {f"{name}_per_s": round(found[count] / passed, 2) for count, name in names.items()}


class StatusPoller:
    """The thread, and what it saw."""

    def __init__(self, settings: ServiceFile, log: Log, every_s: float = LOOK_EVERY_S) -> None:
        self._settings, self._log, self._every_s = settings, log, every_s
        self._ending = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._seen: deque[StatusSnapshot] = deque(maxlen=KEPT)
        self.trouble: str | None = None

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                status = status_of(self._settings, self._log, int(time.time() * 1000))
                self._seen.append(StatusSnapshot(time.monotonic(), status))
                self.trouble = None
            except (LogUnavailable, Fenced, Refused) as error:
                self.trouble = str(error).splitlines()[0]
            self._first.set()
            self._ending.wait(self._every_s)

    @property
    def latest(self) -> StatusSnapshot:
        """The newest look; waits for the first one."""
        self._first.wait(30)
        if not self._seen:
            hint = "Ask again in a moment; `samovar doctor` says whether the log can be reached."
            raise Refused("log-unavailable", "the log did not answer yet", hint, self.trouble or "")
        return self._seen[-1]

    @property
    def is_old(self) -> bool:
        return not self._seen or time.monotonic() - self._seen[-1].at_s > OLD_S

    def rates(self) -> dict[str, float]:
        latest = self.latest
        before = next((each for each in list(self._seen) if latest.at_s - each.at_s <= RATE_OVER_S), None)
        return rates_of(before, latest)

    def samples(self, minutes: float) -> list[dict[str, Any]]:
        oldest = time.monotonic() - minutes * 60
        return [after.sample(before) for before, after in pairwise(list(self._seen)) if after.at_s >= oldest]
