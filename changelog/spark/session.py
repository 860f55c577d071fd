"""One Spark session a command: started in a thread while the command prints its plan, ended with it.

    with starting("samovar restore", kafka=True) as start:
        print(plan)
        session = start.ready()
        rows = session.run("restore", lambda: frame.collect(), on_progress, total=5_000_000)

`run` does the work in a thread, asks Spark how far it is, and on Ctrl-C cancels the job before it lets go. Errors of
Spark come out as refusals (samovar.changelog.spark.errors). A session that is open already, as in a notebook or under
spark-submit, is used and left open.

What Spark and its Java write of themselves goes to a folder of its own, which stays only where something failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from samovar.changelog.broker.jars import Say, find_java, tail
from samovar.changelog.spark.errors import translated
from samovar.changelog.spark.jars import connector_jars
from samovar.changelog.spark.progress import OnProgress, look
from samovar.common.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

LOCAL = "local[*]"
SUBMITTED = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it
LOOK_S = 0.5
END_S = 20.0  # for Java to end by itself
HOST = "127.0.0.1"
LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""
# Counts of running tasks come with heartbeats. Times are shown as the rest of Samovar shows them.
SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.executor.heartbeatInterval": "5s",
    "spark.hadoop.fs.permissions.umask-mode": "077",  # what executors write is for this user alone
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.pyspark.jvmStacktrace.enabled": "false",
}
JAVA = "spark.driver.extraJavaOptions"
# For jobs that Python does: Java only schedules them, and would spend more on compiling itself well than it gains.
SCHEDULING = {JAVA: "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1"}
READING = {JAVA: "-XX:+UseParallelGC"}  # for jobs that read Kafka: many objects that live shortly
ON_THIS_MACHINE = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
}


@dataclass
class OpenSession:
    """An open Spark session. `log` is the file that Spark writes its log to; None where it is not ours."""

    spark: SparkSession
    log: Path | None = None

    @property
    def ui(self) -> str | None:
        """Where its pages are."""
        return self.spark.sparkContext.uiWebUrl

    @property
    def is_local(self) -> bool:
        return is_local(str(self.spark.sparkContext.master))

    def run(
        self,
        job: str,
        do: Callable[[], T],
        on_progress: OnProgress = lambda _: None,
        *,
        total: int | None = None,
        ticks: Path | None = None,
    ) -> T:
        """Do some work on Spark and tell how far it is. `ticks` is the folder of its tasks' `Ticker`s."""
        context, group = self.spark.sparkContext, f"samovar-{uuid4().hex}"

        def in_group() -> T:
            context.setJobGroup(group, job, interruptOnCancel=True)
            return do()

        begun = time.monotonic()
        result = _in_thread(in_group, job)
        try:
            while not _is_done(result):
                with translated(self.log):
                    on_progress(look(context, group, job, begun, total, ticks))
        except BaseException:  # Ctrl-C above all: nothing of ours may go on behind the command's back
            context.cancelJobGroup(group)
            wait([result], END_S)
            raise
        with translated(self.log):
            return result.result()


def _in_thread(do: Callable[[], T], name: str) -> Future[T]:
    """In a daemon: a command that is interrupted does not wait for it."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(do())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result


def _is_done(result: Future[Any]) -> bool:
    """Waits for a moment, not for ever at once: Ctrl-C is heard in between."""
    return bool(wait([result], LOOK_S).done)


class SessionStart:
    """A session on its way. Made by `starting`."""

    def __init__(self, start: Callable[[], OpenSession]) -> None:
        self._session = _in_thread(start, "spark start")

    def ready(self) -> OpenSession:
        """The session, as soon as it is there; refused where it cannot be had."""
        while not _is_done(self._session):
            pass
        return self._session.result()


@contextmanager
def starting(
    name: str,
    master: str | None = None,
    *,
    kafka: bool = False,
    settings: Mapping[str, str] | None = None,
    say: Say = lambda _: None,
) -> Iterator[SessionStart]:
    """A session that starts now. `kafka`: with the connector. `say` is told what takes long and where the pages are."""
    is_installed = False
    with suppress(ValueError):  # it is known to be missing
        is_installed = find_spec("pyspark") is not None
    if not is_installed:
        raise Refused("spark-missing", "PySpark is not installed here", "Install it: `pip install 'samovar[spark]'`.")
    opened = _existing_session()
    if opened is not None:
        yield SessionStart(lambda: opened)
        return
    java = find_java("Spark")
    folder = Path(tempfile.mkdtemp(prefix="samovar-spark-"))
    launched = _Launched(folder)

    def start() -> OpenSession:
        jars = connector_jars(java, say) if kafka else []
        session = launched.start(name, master, jars, settings or {})
        say(f"Spark {session.spark.version} on {session.spark.sparkContext.master}; its pages: {session.ui}")
        return session

    begun = SessionStart(start)
    keep = False
    try:
        yield begun
    except Refused as refused:
        keep = str(folder) in str(refused)  # the message names its log
        raise
    finally:
        with suppress(Exception):
            begun.ready()
        launched.end()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def scratch_folder() -> Path:
    """A folder that goes with this executor; outside of Spark, with this process."""
    from pyspark import SparkFiles  # noqa: PLC0415 - as above

    own = SparkFiles._root_directory if SparkFiles._is_running_on_worker else None
    return Path(own or _process_folder().name)


@cache
def _process_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="samovar-scratch-")


def is_local(master: str) -> bool:
    """Whether tasks run in this machine's one process, and see its files.

    >>> is_local("local[2]"), is_local("local"), is_local("local-cluster[2,1,1024]"), is_local("spark://host:7077")
    (True, True, False, False)
    """
    return master == "local" or master.startswith("local[")


def may_be_local(master: str | None) -> bool:
    """Whether a session that is to start would be on this machine; what spark-submit was told is known when it has."""
    return is_local(master or LOCAL) and (master is not None or SUBMITTED not in os.environ)


def _existing_session() -> OpenSession | None:
    """The session that this process has already: of a notebook, of tests, of a command around this one."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes long, and is not always installed

    if _ours is not None:
        return _ours
    found = SparkSession.getActiveSession()
    return None if found is None else OpenSession(found)


class _Launched:
    """The Java process of a session, and its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gateway: Any = None

    def start(self, name: str, master: str | None, jars: list[Path], settings: Mapping[str, str]) -> OpenSession:
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - as above
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415 - as above
        from pyspark.logger import PySparkLogger  # noqa: PLC0415 - as above
        from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

        global _ours  # noqa: PLW0603 - a process has one Spark, anyone who asks for it
        log, log4j = self._folder / "spark.log", self._folder / "log4j2.properties"
        submitted = SUBMITTED in os.environ  # by spark-submit, with a Java that knows where it runs
        log4j.write_text(LOG4J.format(file=log), "utf-8")
        if submitted:
            SparkContext._ensure_initialized()  # the Java that is there knows what spark-submit was told
        conf = SparkConf()
        where = master or (conf.get("spark.master") if submitted else None) or LOCAL
        wanted = SETTINGS | (ON_THIS_MACHINE if is_local(where) else {}) | dict(settings)
        java = f"-Dlog4j2.configurationFile={log4j.as_uri()} {wanted.get(JAVA, '')}"
        wanted |= {JAVA: java.strip(), **({"spark.jars": ",".join(map(str, jars))} if jars else {})}
        conf.setMaster(where).setAppName(name)
        for key, value in wanted.items():
            if not submitted or conf.get(key) is None:
                conf.set(key, value)
        launch: Any = launch_gateway  # it has no types
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints what is raised as well
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if is_local(where):
            os.environ.setdefault("SPARK_LOCAL_IP", HOST)
        try:
            if submitted:
                context = SparkContext(conf=conf)
                context.setLogLevel("ERROR")
            else:
                with (self._folder / "java.log").open("w") as said:
                    self._gateway = launch(conf, {"stderr": said, "stdout": said})
                context = SparkContext(gateway=self._gateway, conf=conf)
            session = OpenSession(SparkSession(context), None if submitted else log)
        except Exception as error:
            file = self._folder / "java.log"
            told = file.read_text("utf-8", "replace") if file.exists() else ""
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise Refused(
                "spark-start-failed",
                f"Spark did not start on {where}",
                f"See that `--master` is right and that Java can start; its log is in {self._folder}.",
                tail("\n".join([*told.splitlines()[-8:], *lines[:3]])),
            ) from error
        _ours = session
        return session

    def end(self) -> None:
        global _ours  # noqa: PLW0603 - as above
        from pyspark import SparkContext  # noqa: PLC0415 - as above

        if _ours is not None:
            _ours.spark.stop()
            _ours = None
        gateway, self._gateway = self._gateway, None
        if gateway is None:
            return
        gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None  # another session in this process needs another Java
        gateway.proc.stdin.close()  # at which Java ends
        try:
            gateway.proc.wait(END_S)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()


_ours: OpenSession | None = None
