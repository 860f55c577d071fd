"""How the service is doing, looked at every second or two by a thread of its own, so that a request never waits for it.

The newest look is what /status, /ready and /caught-up answer with; the looks of the last half hour make its curves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """One look. `counts` are sums over the containers that run."""

    at_s: float  # monotonic
    status: ServiceStatus
    counts: Mapping[str, int]

    @property
    def presences(self) -> list[MemberMetadata]:
        known = [each.presence for each in self.status.containers if each.state in ("running", "silent")]
        return [each for each in known if each is not None]

    @property
    def is_caught_up(self) -> bool:
        """Everything runs, and nothing waits for long."""
        status = self.status
        return status.runs and all(task.behind_s <= CAUGHT_UP_S for task in status.tasks)

    def sample(self, before: StatusSnapshot | None) -> dict[str, Any]:
        told = self.status.data()
        rates = rates_of(before, self)
        rates |= {"lag": told["lag"], "behind_s": told["behind_s"], "watermark_age_s": told["watermark_age_s"]}
        return {"time": self.status.time_ms, **rates}


def rates_of(before: StatusSnapshot | None, after: StatusSnapshot) -> dict[str, float]:
    """What was counted a second, container by container: one that began again counts from nothing."""
    names = {"events": "events", "matches": "alerts", "late": "late", "dead": "dead"}
    if before is None or after.at_s <= before.at_s:
        return {f"{name}_per_s": 0.0 for name in names.values()}
    passed = after.at_s - before.at_s
    known = {_identity(each): each.counts for each in before.presences}
    found = dict.fromkeys(names, 0)
    for each in after.presences:
        began = known.get(_identity(each), {})
        if began or each.since_ms > before.status.time_ms:  # else it was away for a while, and counted all the time
            for count in names:
                found[count] += max(each.counts.get(count, 0) - began.get(count, 0), 0)
    return {f"{name}_per_s": round(found[count] / passed, 2) for count, name in names.items()}


def _identity(container: MemberMetadata) -> tuple[int, int, int]:
    return container.slot, container.pid, container.since_ms


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
            self.look()
            self._first.set()
            self._ending.wait(self._every_s)

    def look(self) -> None:
        try:
            status = status_of(self._settings, self._log, int(time.time() * 1000))
        except (LogUnavailable, Fenced, Refused) as error:
            self.trouble = str(error).splitlines()[0]
            return
        self.trouble = None
        self._seen.append(StatusSnapshot(time.monotonic(), status, counts_of(status)))

    # ------------------------------------------------------------ what it saw

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
        return rates_of(
            next((each for each in list(self._seen) if latest.at_s - each.at_s <= RATE_OVER_S), None), latest
        )

    def samples(self, minutes: float) -> list[dict[str, Any]]:
        seen: Sequence[StatusSnapshot] = list(self._seen)
        oldest = time.monotonic() - minutes * 60
        pairs = zip([None, *seen], seen, strict=False)
        return [after.sample(before) for before, after in pairs if before is not None and after.at_s >= oldest]


def counts_of(status: ServiceStatus) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in status.containers:
        if each.presence is not None and each.state in ("running", "silent"):
            for name, value in each.presence.counts.items():
                total[name] = total.get(name, 0) + value
    return total
