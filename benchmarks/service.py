"""How fast the whole service is, against Kafka Streams on the same machine, with the broker next to it.

    python -m benchmarks service [--events N] [--only w1,w2,embedded,keys,latency,restore] [--runs N] [--full] [--json]

Starts a broker of its own in a temporary folder. Both sides run the same workload one after the other, and their alerts
are checked, each against what is right: a run with wrong alerts gives no figures. Kafka Streams is built with Maven;
where that is missing only our side is run.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Sequence

from benchmarks import latency, restoring, throughput
from benchmarks.bed import prepared
from benchmarks.processes import FailedError
from benchmarks.rows import Row, as_json, show
from benchmarks.sides import built
from samovar.changelog.broker.jars import VERSION, find_java

PARTS = {
    "w1": throughput.w1,
    "w2": throughput.w2,
    "embedded": throughput.embedded,
    "latency": latency.latency,
    "restore": restoring.restore,
    "keys": throughput.keys,
    "keys-restore": restoring.restore_keys,
}
LONG = ("keys", "keys-restore")


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    load = os.getloadavg()[0]
    logging.getLogger("samovar.kafka").setLevel(logging.CRITICAL)  # a broker that is just starting is no news
    peer = built()
    if not peer:
        say("there is no Maven (mvn), so that Kafka Streams cannot be built: only our side is run")
    rows: list[Row] = []
    failed = 0
    with prepared(say) as bed:
        asked = throughput.Given(bed, arguments.events, arguments.runs, peer, say)
        for name in arguments.only:
            try:
                rows += PARTS[name](asked)
            except FailedError as error:
                failed = 1
                say(f"{name} gave no figures: {error}")
    footer = about(arguments, peer, load)
    if arguments.json:
        print(json.dumps(as_json(rows, footer), indent=1))
    else:
        show(rows, footer)
    return failed


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks service", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--events", type=int, default=2_000_000, help="of W1 and W2; half as many keys where keys count"
    )
    parser.add_argument("--only", type=parts, metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--runs", type=int, default=1, help="of W1, W2 and the embedded log; the median counts")
    parser.add_argument("--full", action="store_true", help=f"also the long parts: {', '.join(LONG)}")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(given)
    if arguments.only is None:
        arguments.only = [name for name in PARTS if arguments.full or name not in LONG]
    return arguments


def parts(text: str) -> list[str]:
    names = text.lower().split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return names


def about(arguments: argparse.Namespace, peer: bool, load: float) -> list[str]:
    """What one must know to read the table, and to get it again."""
    command = f"python -m benchmarks service --events {arguments.events} --runs {arguments.runs}"
    streams = f"Kafka Streams {VERSION}, exactly_once_v2, 2 threads, Java {find_java().version}" if peer else "no peer"
    return [
        f"{command} --only {','.join(arguments.only)}",
        f"load of the machine before: {load:.1f}" + (" (busy: do not trust these figures)" if load > 1 else ""),
        f"Kafka {VERSION} on the same cores; {streams}; {platform.platform()}",
        "events/s: from the first record to all input committed; processor time: in that time; ratio: Samovar's part",
    ]


def say(text: str) -> None:
    print(f"  ... {text}", file=sys.stderr, flush=True)
