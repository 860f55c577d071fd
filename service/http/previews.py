"""Previews of rules for those who write them: one at a time, for each the newest, and samples made behind them.

The kernel's work is done without Python's lock, in one thread, so that other requests are answered meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from samovar.changelog.log import Log
from samovar.common.errors import Refused
from samovar.patterns.syntax.tree import Rule
from samovar.service.backtest.preview import NotWanted, Preview, preview
from samovar.service.backtest.samples import extend_samples, key_specs
from samovar.service.config.models import ServiceFile
from samovar.service.http.jobs import Job, Jobs, OnProgress

WAITING_MOST = 8  # each has a thread of the process
WAIT_S = 0.1  # for one's turn, between two looks at whether anybody still waits


class Previews:
    """Who waits for a preview. The source of truth for which request of each is the newest."""

    def __init__(self, settings: ServiceFile, log: Log, jobs: Jobs) -> None:
        self.settings, self.log, self.jobs = settings, log, jobs
        self._newest: dict[str, object] = {}
        self._turn = threading.Lock()
        self._sample: Job | None = None

    def run(self, who: str, rule: Rule, is_connected: Callable[[], bool]) -> Preview:
        """A preview, when it is its turn. A newer one of the same person takes its place."""
        if len(self._newest.keys() | {who}) > WAITING_MOST:
            raise Refused("too-much-at-once", f"{WAITING_MOST} people wait for previews already", "Ask again soon.")
        mine = self._newest[who] = object()

        def is_wanted() -> bool:
            return self._newest.get(who) is mine and is_connected()

        try:
            while not self._turn.acquire(timeout=WAIT_S):
                if not is_wanted():
                    raise NotWanted
            try:
                return preview(self.settings, self.log, rule, is_wanted=is_wanted)
            finally:
                self._turn.release()
        except NotWanted:
            raise Refused("preview-overtaken", "a newer text took its place", "Wait for the newer one.") from None
        finally:
            if self._newest.get(who) is mine:
                del self._newest[who]

    def sampling(self, who: str, rule: Rule, found: Preview) -> float | None:
        """How far a sample is that is made; begins one where a preview lacks it. None: there is none to wait for."""
        specs = {keys: spec for keys, spec in key_specs(rule).items() if keys}
        if found.complete or (found.behind == 0 and found.sampled) or not specs:
            return None
        if self._sample is None or self._sample.state != "running":

            def work(on_progress: OnProgress) -> None:
                extend_samples(self.settings, self.log, specs, lambda done, total: _told(on_progress, done, total))

            try:
                self._sample = self.jobs.start("sample", who, work)
            except Refused:  # others are at work: the next preview tries again
                return None
        return round(self._sample.share, 4)


def _told(on_progress: OnProgress, done: int, total: int) -> bool:
    on_progress(done / total if total else 1.0, None)
    return True
