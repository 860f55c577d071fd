"""One slot, one process: a container does not take the slot of one that lives elsewhere.

On Kafka a container that joins as a slot fences the one before, so that two with one slot would fence each other for
ever. Containers send heartbeats every two seconds (samovar.changelog.formats.heartbeat); where the last one of the slot
came from another process, a newcomer waits for the next. No clocks are compared. After a kill -9 and a restart on the
same machine the process before is gone, and nothing is waited for.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from samovar import __version__
from samovar.changelog.formats import heartbeat
from samovar.changelog.formats.heartbeat import Heartbeat, MemberMetadata, heartbeats
from samovar.changelog.log import Log
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.tasks.model.clock import SYSTEM_CLOCK, Clock

STALE_S = 7.0  # with no heartbeat, of one every two seconds, for which a container is held to be dead
LOOK_S = 0.25


def host_name() -> str:
    """SAMOVAR_HOST names the machine where its own name is not unique."""
    return os.environ.get("SAMOVAR_HOST") or socket.gethostname()


class SlotClaim:
    """What a container knows of others in its slot."""

    def __init__(
        self,
        log: Log,
        service: str,
        slot: int,
        wait: Callable[[float], object] = time.sleep,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`wait` says whether to stop."""
        self._log, self._service, self._slot, self.wait, self._clock = log, service, slot, wait, clock
        self.host, self.pid, self.since_ms = host_name(), os.getpid(), clock.wall_ms()
        self._is_claimed = False

    def acquire(self) -> None:
        """Claim the slot, or refuse while another container in it lives. Of two claims the first in the log counts."""
        end = self._wait_for_others()
        if end is None:
            return
        claim = MemberMetadata(
            slot=self._slot,
            host=self.host,
            pid=self.pid,
            since_ms=self.since_ms,
            version=__version__,
            time_ms=self._clock.wall_ms(),
        )
        heartbeat.send_heartbeat(self._log, self._service, claim)
        for each in heartbeats(self._log, self._service, self._slot, end)[0]:
            if each is not None and (each.host, each.pid) == (self.host, self.pid):
                break
            if self._is_other(each):
                assert each is not None
                raise self._taken(each)
        self._is_claimed = True

    def release(self) -> None:
        """Say that the slot is free, if it was ours."""
        if self._is_claimed:
            self._is_claimed = False
            with suppress(Refused, LogUnavailable, Fenced):
                heartbeat.send_tombstone(self._log, self._service, self._slot)

    def _wait_for_others(self) -> int | None:
        """Wait until none tells of itself; the offset from which on others may have since. None: it is to stop."""
        told, end = heartbeats(self._log, self._service, self._slot)
        last = told[-1] if told else None
        deadline_ms = self._clock.steady_ms() + STALE_S * 1000
        while self._is_other(last) and self._clock.steady_ms() < deadline_ms:
            if self.wait(LOOK_S):
                return None
            told, end = heartbeats(self._log, self._service, self._slot, end)
            if told and told[-1] is None:  # it has left
                break
            for each in told:
                if each is not None and self._is_other(each):
                    raise self._taken(each)
        return end

    def keep(self) -> None:
        """After another one took over: refuse where that is older and alive. Of two, the later one gives way."""
        told = [each for each in heartbeats(self._log, self._service, self._slot)[0] if each is not None]
        newest_ms = max((each.log_ms for each in told), default=0)
        for each in told:
            is_older = (each.since_ms, each.host) < (self.since_ms, self.host)
            if is_older and newest_ms - each.log_ms <= STALE_S * 1000 and self._is_other(each):
                self._is_claimed = False
                raise self._taken(each)

    def _is_other(self, found: Heartbeat | None) -> bool:
        if found is None or (found.host, found.pid) == (self.host, self.pid):
            return False
        if found.host != self.host:
            return True
        try:
            os.kill(found.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it lives, and is another user's
            return True
        return True

    def _taken(self, other: Heartbeat) -> Refused:
        since = datetime.fromtimestamp(other.since_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return Refused(
            "slot-taken",
            f"slot {self._slot} of {self._service} is taken by a container on {other.host} (process {other.pid}), which"
            f" runs since {since}",
            f"Start this one in another slot (`--slot`), or stop the container on {other.host} first. This machine is"
            f" {self.host}; where two have the same name, set SAMOVAR_HOST.",
        )
