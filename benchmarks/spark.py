"""How fast Spark restores, next to the local engine; and how cost grows with size.

    python -m benchmarks spark [--records N] [--events N] [--sizes 1,5,20] [--only restore,source,sizes] [--plot FILE]
                               [--master URL] [--json]

A broker of its own next to it. Restore is of a changelog of N records, five to each key; source is W1 folded again. The
clock runs from the plan to the last store in its place, digests included, after the session has started: the first
figure of a session has the start of Python's workers and a Java that is not yet warm in it. Every store must have the
digest that the service's own had.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import bed
from benchmarks.bed import PARTITIONS, Bed, prepared
from benchmarks.figures import machine
from benchmarks.matcher import Figure, show
from benchmarks.processes import FailedError
from benchmarks.service import say
from benchmarks.sides import Samovar, on_kafka
from benchmarks.spark_plot import plot
from benchmarks.stream import Purchases, distinct, purchases
from benchmarks.throughput import run_through
from samovar.changelog.cursors import PartitionCursor
from samovar.changelog.log import Append, TopicPartition
from samovar.changelog.spark.session import READING, OpenSession, starting
from samovar.service.config.loading import load_service
from samovar.service.recovery.restore.plan import RestoreRequest, plan_restore
from samovar.service.recovery.restore.run import restore_all
from samovar.service.spark.restore import OnSpark
from samovar.service.topology.logs import opened
from samovar.service.topology.stores import StateLocation, digest_of, plan_for, position_of, reading, site_of

A_KEY = 5  # records
RESTORE_AIM, SOURCE_AIM = 300_000, 100_000
PARTS = ("restore", "source", "sizes")
MILLION = 1_000_000


@dataclass(frozen=True)
class Timed:
    """One restore: how many records, in which time, and what came of it."""

    records: int
    seconds: float
    digests: tuple[str, ...]

    @property
    def records_s(self) -> float:
        return self.records / self.seconds


@dataclass(frozen=True)
class Given:
    bed: Bed
    session: OpenSession
    records: int
    events: int
    sizes: Sequence[float]
    plot: Path | None


# ---------------------------------------------------------------- what is restored


def with_changelog(at: Bed, name: str, records: int) -> Samovar:
    """A service whose changelog has so many records, five to each key, the newest as the service left them."""
    keys = max(records // A_KEY, 1)
    side = processed(at, f"spark-{name}", distinct(keys))
    for partition in range(PARTITIONS):
        place = TopicPartition(side.changelog, partition)
        begin, end = at.log.bounds([place])[place]
        for _ in range(A_KEY - 1):
            cursor = PartitionCursor(at.log, place, begin)
            while (some := cursor.next_records(end)) is not None:
                at.log.append([Append(topic=side.changelog, records=some.pairs(), partition=partition)])
            cursor.close()
    return side


def processed(at: Bed, name: str, stream: Purchases) -> Samovar:
    topic = f"{name}-tx"
    say(f"{name}: {len(stream):,} events through the service")
    bed.fill(at.log, topic, stream)
    side = on_kafka(at, name, "w1", topic)
    run_through(at.log, side, topic, len(stream))
    return side


# ---------------------------------------------------------------- one restore


def timed(side: Samovar, asked: RestoreRequest, session: OpenSession | None) -> Timed:
    """Restore all partitions into a folder of its own; the live stores stay."""
    settings = load_service(side.config)
    out = side.folder / "restored"
    shutil.rmtree(out, ignore_errors=True)
    with opened(settings) as log:
        site = site_of(settings, log)
        wanted = replace(asked, out=out, engine="local" if session is None else "spark")
        begun = time.monotonic()
        plans = plan_restore(site, wanted, int(time.time() * 1000))
        if session is None:
            done = list(restore_all(site, wanted, plans, lambda *_: None))
        else:
            engine = OnSpark(session, lambda now: say(now.text()))
            with engine.tables(site):
                done = list(restore_all(site, wanted, plans, lambda *_: None, engine))
        seconds = time.monotonic() - begun
        live = tuple(_live_digests(site))
    found = Timed(sum(each.records for each in done), seconds, tuple(each.digest for each in done))
    if found.digests != live:
        raise FailedError(f"{side.name}: digests differ from those of the service's own stores")
    return found


def _live_digests(site: StateLocation) -> Iterator[str]:
    for partition in site.chosen(()):
        with reading(site.store(partition)) as store:
            yield digest_of(plan_for(site, partition, position_of(store)), store)


# ---------------------------------------------------------------- parts


def restore(given: Given) -> Iterable[Figure]:
    side = with_changelog(given.bed, "restore", given.records)
    asked = RestoreRequest(source="changelog")
    first = timed(side, asked, given.session)
    again = timed(side, asked, given.session)
    local = timed(side, asked, None)
    told = f"{again.records:,} records, {again.records // A_KEY:,} keys, {PARTITIONS} partitions"
    yield Figure("restore, Spark", again.records_s, "records/s", told, RESTORE_AIM)
    yield Figure("restore, Spark, first of its session", first.records_s, "records/s", f"{first.seconds:.1f} s")
    yield Figure("restore, local engine", local.records_s, "records/s", f"{local.seconds:.1f} s")


def source(given: Given) -> Iterable[Figure]:
    side = processed(given.bed, "spark-w1", purchases(given.events))
    asked = RestoreRequest(source="source")
    spark, local = timed(side, asked, given.session), timed(side, asked, None)
    yield Figure("from source, Spark", spark.records_s, "events/s", f"W1, {spark.records:,} events", SOURCE_AIM)
    yield Figure("from source, local engine", local.records_s, "events/s", f"{local.seconds:.1f} s")


def sizes(given: Given) -> Iterable[Figure]:
    """Both engines over changelogs of several sizes; `--plot` draws it."""
    drawn: dict[str, list[tuple[float, float]]] = {"Spark": [], "local engine": []}
    for size in given.sizes:
        side = with_changelog(given.bed, f"size-{size:g}", int(size * MILLION))
        if size == given.sizes[0]:
            timed(side, RestoreRequest(source="changelog"), given.session)  # starts Python's workers
        for name, session in (("Spark", given.session), ("local engine", None)):
            found = timed(side, RestoreRequest(source="changelog"), session)
            drawn[name].append((size, found.seconds))
            note = f"{found.records_s:,.0f} records/s"
            yield Figure(f"{size:g} million records, {name}", found.seconds, "s", note)
        given.bed.log.delete([side.topic, side.changelog])
    if given.plot is not None:
        given.plot.write_text(plot(drawn, "million changelog records", "seconds to restore"), "utf-8")
        say(f"drawn: {given.plot}")


# ---------------------------------------------------------------- all of it


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    logging.getLogger("samovar.kafka").setLevel(logging.CRITICAL)  # a broker that is just starting is no news
    load = os.getloadavg()[0]
    figures: list[Figure] = []
    failed = 0
    with prepared(say) as at:
        begun = time.monotonic()
        with starting("samovar bench", arguments.master, kafka=True, settings=READING, say=say) as start:
            session = start.ready()
            figures.append(Figure("start of a session", time.monotonic() - begun, "s", "with the connector's jars"))
            asked = Given(at, session, arguments.records, arguments.events, arguments.sizes, arguments.plot)
            for part in arguments.only:
                try:
                    figures += {"restore": restore, "source": source, "sizes": sizes}[part](asked)
                except FailedError as error:
                    failed = 1
                    say(f"{part} gave no figures: {error}")
    footer = [
        f"python -m benchmarks spark {' '.join(given)}",
        f"load of the machine before: {load:.1f}" + (" (busy: do not trust these figures)" if load > 1 else ""),
    ]
    if arguments.json:
        rows = [vars(figure) for figure in figures]
        print(json.dumps({"machine": machine(), "figures": rows, "notes": footer}, indent=1))
    else:
        show(figures, f"samovar on Spark, {arguments.master}")
        print("\n".join(footer))
    return failed


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=5 * MILLION, help="of the changelog that is restored")
    parser.add_argument("--events", type=int, default=2 * MILLION, help="of W1, folded again")
    parser.add_argument("--sizes", type=_sizes, default=[1, 5, 20], metavar="1,5,20", help="in million records")
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the sizes as SVG")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(given)


def _sizes(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def _parts(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
