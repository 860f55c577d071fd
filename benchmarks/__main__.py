"""`make bench`: what is measured here, as tables.

    python -m benchmarks [matcher] [--events N] [--full] [--json]
    python -m benchmarks service [--events N] [--only PART,...] [--runs N] [--full] [--json]
    python -m benchmarks scaling [--events N] [--only PART,...] [--full] [--json]
    python -m benchmarks http [--rate N] [--listeners N] [--seconds N] [--rounds N] [--json]
    python -m benchmarks spark [--records N] [--events N] [--sizes 1,5,20] [--only PART,...] [--plot FILE] [--json]
    python -m benchmarks backtest [--events N] [--json]
    python -m benchmarks failover [--rounds N]
    python -m benchmarks tables [--keys N] [--rounds N]
    python -m benchmarks soak [--minutes N] [--rate N] [--json FILE] [--plot FILE]
    python -m benchmarks all [options that both have]

`matcher` is one process that uses one thread. `service` is the whole of it, with a Kafka broker next to it, against
Kafka Streams on the same machine in the same run. `http` asks the HTTP process while the stream runs.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence

from benchmarks import backtest, http, matcher, scaling, service, soak


def _spark(arguments: Sequence[str]) -> int:
    from benchmarks import spark  # noqa: PLC0415 - PySpark is not everywhere

    return spark.main(arguments)


def _tables(arguments: Sequence[str]) -> int:
    from benchmarks import tables  # noqa: PLC0415 - as above

    return tables.main(arguments)


def _failover(arguments: Sequence[str]) -> int:
    from benchmarks import failover  # noqa: PLC0415 - it needs what tests need

    return failover.main(arguments)


PARTS: dict[str, list[Callable[[Sequence[str]], int]]] = {
    "matcher": [matcher.main],
    "service": [service.main],
    "scaling": [scaling.main],
    "http": [http.main],
    "spark": [_spark],
    "backtest": [backtest.main],
    "tables": [_tables],
    "failover": [_failover],
    "soak": [soak.main],
    "all": [matcher.main, service.main],
}


def main(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] in PARTS:
        return max(part(arguments[1:]) for part in PARTS[arguments[0]])
    return matcher.main(arguments)


def _end(*_: object) -> None:
    """As Ctrl-C does: what was started is stopped on the way out."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))
