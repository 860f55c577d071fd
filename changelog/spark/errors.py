"""What goes wrong on Spark, in our words: a code, what happened, what to do. Spark's own trace stays in its log file.

A task that refuses does so on an executor, and arrives here as the text of a Python trace: the refusal is read back
from it, so that a job ends with the same code and hint wherever it ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from samovar.common.errors import Refused

_MARK = "samovar.common.errors.Refused: "
_NOT_OURS = re.compile(r"\s+(at [\w.$]+\(|SQLSTATE: |$)")  # what Spark adds to a trace
_LAST_ERROR = re.compile(r"^(?:[\w.$]*\.)?(\w*(?:Error|Exception)): *(.*)$", re.MULTILINE)
_NO_CONNECTOR = re.compile(r"Failed to find (the )?data source: kafka")
_LOST = re.compile(r"KAFKA_DATA_LOSS|OffsetOutOfRange|Some data may have been lost")
_PLACE = re.compile(r"topic partition (\S+)")
MOST = 600  # characters of what Spark says


def refusal_in(text: str) -> Refused | None:
    r"""The refusal that a trace tells, if it tells one.

    >>> refusal_in("x\nsamovar.changelog.errors.Refused: topic-missing: no topic x\n  Make it.\n\n\tat org.a.B(C)")
    Refused(code='topic-missing', what='no topic x', hint='Make it.', detail='')
    """
    _, mark, told = text.rpartition(_MARK)  # the last one: causes come first
    if not mark:
        _, mark, told = text.rpartition("BadServiceFile: ")  # has a text of its own, with lines and carets
        what = told.splitlines()[0] if told else "the service file has errors"
        hint = "Fix the file; `samovar rules check CONFIG` shows all of it."
        return Refused("service-file", what, hint) if mark else None
    first, *more = told.splitlines()
    own = takewhile(lambda line: line.startswith("  ") and not _NOT_OURS.match(line), more)
    return Refused.read("\n".join([first, *own]))


def explained(error: Exception, log: Path | None) -> Refused:
    """Any error of Spark as a refusal."""
    if isinstance(error, Refused):
        return error
    text = str(error)
    told = refusal_in(text)
    if told is not None:
        return told
    if "UnknownTopicOrPartition" in text:
        return Refused(
            "topic-missing",
            "a topic that was to be read does not exist",
            "Start the service once with `topics: create`, or make it as `samovar topics plan` says.",
            _short(text),
        )
    if _LOST.search(text):
        place = _PLACE.search(text)
        return Refused(
            "log-truncated",
            f"{place[1] if place else 'a partition'} no longer holds records that were to be read",
            "Its records were deleted while they were read, or it is another topic under the same name; nothing was"
            " guessed. Run it again.",
            _short(text),
        )
    if _NO_CONNECTOR.search(text):
        return Refused(
            "spark-connector-missing",
            "this Spark session was started without the connector for Kafka",
            "Start it with `samovar.changelog.spark.session.starting(..., kafka=True)`, or with"
            " `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0`.",
        )
    where = "" if log is None else f" Spark's own log is {log}."
    hint = f"Run it again, or with `--engine local` where there is one.{where}"
    return Refused("spark-job-failed", "a job on Spark failed", hint, _short(text))


def _short(text: str) -> str:
    """The line that says most: of a trace the last error, of a message its beginning."""
    found = _LAST_ERROR.findall(text)
    line = ": ".join(found[-1]) if found else text.strip().splitlines()[0] if text.strip() else "no reason was given"
    return line[:MOST]


@contextmanager
def translated(log: Path | None) -> Iterator[None]:
    """Errors of Spark inside this become refusals. Those of Python itself stay what they are."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - with pyspark, which only its jobs need
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise explained(error, log) from error
