"""Looks at the rules topic next to a container's loop, and makes plans of what was published.

A change that cannot be taken (a rule with errors under this service file, topics that may not be made) is told, and the
rules before it go on; with the next change it is tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from samovar.changelog.formats.rules_topic import read_changes, topic_of
from samovar.changelog.log import Log, TopicPartition
from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.patterns.engine.matcher import RuleFailure
from samovar.service.config.models import ServiceFile
from samovar.service.rules.publishing import quarantine
from samovar.service.topology.plans import rule_plans
from samovar.service.topology.rule_registry import folded, registry_of, with_registry
from samovar.service.topology.topics import ensure
from samovar.tasks.model.log_events import LogEvent
from samovar.tasks.model.plan import Plan
from samovar.tasks.runtime.container import RuleSource

LOOK_EVERY_S = 0.5
CLOSE_S = 5.0


class PublishedRuleSource(RuleSource):
    """The source of truth for which change a container knows. `newer` is its loop's, all else may be another's."""

    def __init__(
        self, log: Log, settings: ServiceFile, plans: Sequence[Plan], partitions: int, tell: Callable[[str], None]
    ) -> None:
        self._log, self._settings, self._partitions, self._tell = log, settings, partitions, tell
        self._tasks = [plan for plan in plans if plan.task is not None]
        self._at = TopicPartition(topic_of(settings.service), 0)
        self._end: int | None = None
        published = registry_of(settings)
        self._known = 0 if published is None else published.change
        self._found: Sequence[Plan] | None = None
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.refused: tuple[int, Refused] | None = None  # a change that could not be taken
        self._failures: deque[RuleFailure] = deque()  # of rules that were taken out here, to be written down
        self._told_unwritten = False

    @property
    def trouble(self) -> str | None:
        if self.refused is None:
            return None
        change, error = self.refused
        return f"change {change}: {error.code}: {error.what}"

    def poll_update(self) -> Sequence[Plan] | None:
        if self._found is None:  # without the lock: a look may be going on
            return None
        with self._lock:
            found, self._found = self._found, None
        return found

    def quarantine(self, failure: RuleFailure) -> None:
        self._failures.append(failure)

    def _write_quarantines(self) -> None:
        """What cannot be written is tried again with the next look; the task that took the rule out goes on without."""
        while self._failures:
            failure = self._failures[0]
            try:
                quarantine(self._settings, self._log, failure.rule, failure.version, failure.reason)
            except Refused as error:
                if error.code != "change-overtaken" and not self._told_unwritten:
                    self._told_unwritten = True
                    text = f"the quarantine of {failure.rule} cannot be written to the rules topic: {error}"
                    self._tell(LogEvent(text, "quarantine-unwritten", "error", rule=failure.rule, code=error.code))
                raise
            self._failures.popleft()
            self._told_unwritten = False

    def refresh(self) -> None:
        with self._lock:
            self._write_quarantines()
            if self._end is None and self._at.topic not in self._log.topics([self._at.topic]):
                return
            end = self._log.bounds([self._at])[self._at].end
            if end == self._end:
                return
            changes = read_changes(self._log, self._settings.service)
            if len(changes) <= self._known:
                self._end = end
                return
            try:
                settings = with_registry(self._settings, folded(changes, self._settings))
                plans = [*rule_plans(settings, self._partitions), *self._tasks]
                ensure(self._log, settings)
                self._found, self.refused = plans, None
            except Refused as error:
                self.refused = len(changes), error
                text = f"change {len(changes)} of the rules is not taken, those before it go on: {error}"
                self._tell(LogEvent(text, "rules-refused", "error", change=len(changes), code=error.code))
            self._known, self._end = len(changes), end  # only now: a log that did not answer is asked again

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts, the topic is looked at."""

        def run() -> None:
            while not self._ending.wait(LOOK_EVERY_S):
                with suppress(LogUnavailable, Fenced, Refused):  # it is looked at again
                    self.refresh()

        thread = threading.Thread(target=run, name="rules", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join(CLOSE_S)
            if self._failures:
                with suppress(LogUnavailable, Fenced, Refused):
                    self._write_quarantines()
