"""Work that takes longer than a request: it runs in a thread, tells how far it is, and keeps its result for a while."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from samovar.common.errors import Fenced, LogUnavailable, Refused
from samovar.patterns.engine.matcher import RuleFailure
from samovar.service.http.problems import LOGGER, fault, problem_of
from samovar.service.http.schemas import JobShown, fields_of

RUNNING_MOST = 2
KEPT = 50
CLOSE_S = 5.0

OnProgress: TypeAlias = Callable[[float, float | None], None]  # the share done, and how many per second


class JobCancelled(Exception):
    """The caller does not want the result any more."""


@dataclass(kw_only=True)
class Job:
    """One piece of work. The source of truth for how far it is."""

    number: str
    what: str
    by: str
    begun_s: float = field(default_factory=time.monotonic)
    state: str = "running"  # then done, failed or cancelled
    share: float = 0.0
    rate: float | None = None
    result: Any = None
    problem: dict[str, Any] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def on_progress(self, share: float, rate: float | None = None) -> None:
        if self.cancelled.is_set():
            raise JobCancelled
        self.share, self.rate = min(max(share, self.share), 1.0), rate

    def data(self) -> dict[str, Any]:
        passed = time.monotonic() - self.begun_s
        left = passed * (1 - self.share) / self.share if self.state == "running" and self.share > 0.01 else None
        left_s = None if left is None else round(left, 1)
        return fields_of(JobShown, self, job=self.number, progress=round(self.share, 4), left_s=left_s)


class Jobs:
    """All work of this process, the newest last."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, what: str, by: str, work: Callable[[OnProgress], Any]) -> Job:
        with self._lock:
            if sum(job.state == "running" for job in self._jobs.values()) >= RUNNING_MOST:
                hint = "Wait for one to end, or cancel one: DELETE /api/v1/jobs/JOB."
                raise Refused("too-much-at-once", f"{RUNNING_MOST} jobs are running already", hint)
            job = Job(number=secrets.token_hex(8), what=what, by=by)
            self._jobs[job.number] = job
            while len(self._jobs) > KEPT:
                self._jobs.popitem(last=False)[1].cancelled.set()
        job.thread = threading.Thread(target=self._run, args=(job, work), name=f"job-{job.number}", daemon=True)
        job.thread.start()
        return job

    def get(self, number: str) -> Job:
        with self._lock:
            if number not in self._jobs:
                raise Refused("unknown-job", "there is no such job", f"The last {KEPT} are kept, until a restart.")
            return self._jobs[number]

    def cancel_of(self, is_gone: Callable[[str], bool]) -> None:
        """Cancel what those began who are no more."""
        with self._lock:
            for job in self._jobs.values():
                if job.state == "running" and is_gone(job.by):
                    job.cancelled.set()

    def close(self) -> None:
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.cancelled.set()
        for job in jobs:
            if job.thread is not None:
                job.thread.join(CLOSE_S)

    def _run(self, job: Job, work: Callable[[OnProgress], Any]) -> None:
        try:
            job.result = work(job.on_progress)
            job.share, job.state = 1.0, "done"
        except JobCancelled:
            job.state = "cancelled"
        except (Refused, RuleFailure, LogUnavailable, Fenced) as error:
            job.problem, job.state = problem_of(error), "failed"
        except Exception as error:  # the last line of defence: a job that hangs for ever helps nobody
            LOGGER.error("job %s failed", job.number, exc_info=error)
            job.problem, job.state = fault("this process", job.number), "failed"
