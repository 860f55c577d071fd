"""How fast the matcher and the offline commands are here, as a table.

    python -m benchmarks matcher [--events N] [--full] [--json]

One core: the numbers are of one process that uses one thread. `--full` adds the runs that need ten million events.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.figures import machine, number
from benchmarks.stream import LISTED, W1, W2, Purchases, many_rules, purchases, write_lines
from samovar.native.kernel import Messages, lines_of
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.decoder import Decoder
from samovar.patterns.engine.matcher import States, step
from samovar.patterns.rulefile.rule_file import load_paths, load_text
from samovar.patterns.syntax.tree import Rule

ROWS = 131_072
TIMES = 3  # a figure is the best of so many runs: others use this machine too
PACK = Path(__file__).resolve().parent.parent / "examples" / "fraud" / "rules"
TARGETS = {
    "W1, one rule": 2_000_000,
    "fraud pack": 1_000_000,
    "100 rules": 300_000,
    "samovar match, W1": 800_000,
}


# Runs a command and tells its peak memory in KB. What the parent could ask for would contain the parent's own peak.
WITH_PEAK = """
import re, sys
from pathlib import Path
from samovar.service.cli.main import run
code = run(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""


@dataclass(frozen=True)
class Figure:
    what: str
    value: float
    unit: str
    note: str = ""
    target: float | None = None


def main(given: Sequence[str]) -> int:
    arguments = _arguments(given)
    figures: list[Figure] = []
    for group in (columns_to_matches, keys, lists, sessions, commands, *([ten_million] if arguments.full else [])):
        figures += group(arguments.events)
        print(f"  ... {group.__name__.replace('_', ' ')}: done", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"machine": machine(), "figures": [asdict(figure) for figure in figures]}, indent=1))
    else:
        show(figures)
    return 0


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks matcher", description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--full", action="store_true", help="also the runs over ten million events")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(given)


# ---------------------------------------------------------------- the matcher alone


def columns_to_matches(events: int) -> Iterable[Figure]:
    stream = purchases(events)
    with tempfile.TemporaryDirectory() as folder:
        data = text_of(stream, Path(folder))
        pack = [loaded.rule for loaded in load_paths([PACK]) if loaded.rule is not None]
        runs = {"W1, one rule": rules_of(W1), "fraud pack": pack, "100 rules": rules_of(*many_rules(100))}
        for name, rules in runs.items():
            rate, matches, live = max(timed_steps(compile_rules(rules), data) for _ in range(TIMES))
            note = f"{len(rules)} rules, {matches:,} matches, {live:,} live states"
            yield Figure(name, rate, "events/s", note, TARGETS[name])


def keys(events: int) -> Iterable[Figure]:
    """Cost must not grow with the number of keys beyond what memory costs."""
    for cards in (10_000, 100_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            data = text_of(purchases(events, cards), Path(folder))
            rate, _, live = timed_steps(compile_rules(rules_of(W1)), data)
            yield Figure(f"W1 with {cards:,} cards", rate, "events/s", f"{live:,} live states at the end")


def lists(events: int) -> Iterable[Figure]:
    """A value is looked up, so a long list must not cost more than memory does.

    The two take turns and count CPU time: others work on this machine too, and it is their ratio that matters.
    """
    sizes = 10, 100_000
    programs = [compile_rules(rules_of(LISTED, lists={"blocked": [f"x{n}" for n in range(size)]})) for size in sizes]
    with tempfile.TemporaryDirectory() as folder:
        data = text_of(purchases(events), Path(folder))
        rounds = [[timed_steps(program, data, time.process_time)[0] for program in programs] for _ in range(2 * TIMES)]
    rates = [max(each) for each in zip(*rounds, strict=True)]
    for size, rate in zip(sizes, rates, strict=True):
        yield Figure(f"W1 with a list of {size:,} values", rate, "events/s")
    yield Figure("cost of 100,000 values", rates[0] / rates[1], "times 10", "in the same run", 1.2)


def sessions(events: int) -> Iterable[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        data = text_of(purchases(events), Path(folder))
        rate, matches, _ = timed_steps(compile_rules(rules_of(W2)), data)
        yield Figure("W2, sessions of 30 s", rate, "events/s", f"{matches:,} sessions closed")


def rules_of(*texts: str, lists: Mapping[str, Sequence[str]] | None = None) -> list[Rule]:
    loaded = [load_text(text, lists=lists) for text in texts]
    return [one.rule for one in loaded if one.rule is not None]


def text_of(stream: Purchases, folder: Path) -> Messages:
    path = folder / "events.jsonl"
    write_lines(stream, path)
    return lines_of(path.read_bytes())


def timed_steps(
    program: Program, data: Messages, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, int, int]:
    """Events per second of `step` alone, matches, states at the end. Decoding is done in between and not counted."""
    decoder, states = Decoder(program.fields), States(program)
    spent, matches = 0.0, 0
    for start in range(0, len(data), ROWS):
        stop = min(start + ROWS, len(data))
        batch = decoder.batch()
        part = Messages(data.data, data.starts[start:stop], data.ends[start:stop])
        decoder.decode(batch, part, offsets=np.arange(start, stop))
        begun = clock()
        matches += len(step(states, batch, int(batch.time[-1])))
        spent += clock() - begun
    return len(data) / spent, matches, states.live()


# ---------------------------------------------------------------- the commands


def commands(events: int) -> Iterable[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        rule, data = Path(folder, "w1.yml"), Path(folder, "events.jsonl")
        rule.write_text(W1)
        write_lines(purchases(events), data)
        few = Path(folder, "few.jsonl")
        write_lines(purchases(1_000), few)
        match = [sys.executable, "-m", "samovar.service.cli", "match", str(rule)]
        startup = best(lambda: wall([*match, str(few)]))
        whole = best(lambda: wall([*match, str(data)]))
        rate = events / (whole - startup)
        yield Figure("samovar match, W1", rate, "events/s", "JSON file to matches, start-up excluded", 800_000)
        slack = best(lambda: wall([*match, "--slack", "0s", str(data)]))
        yield Figure("samovar match --slack 0s", events / (slack - startup), "events/s")
        yield Figure("first match", best(lambda: first_line([*match, str(data)])), "s", "of 2 M events, unsorted read")
        streamed = [*match, "--slack", "0s", str(data)]
        yield Figure("first match, --slack 0s", best(lambda: first_line(streamed)), "s", "", 1.5)
        helped = best(lambda: wall([sys.executable, "-m", "samovar.service.cli", "--help"]))
        yield Figure("samovar --help", helped, "s", "", 0.4)


def ten_million(_: int) -> Iterable[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        rule, data = Path(folder, "w1.yml"), Path(folder, "events.jsonl")
        rule.write_text(W1)
        write_lines(purchases(10_000_000), data)
        begun = time.perf_counter()
        command = [sys.executable, "-c", WITH_PEAK, "match", "-q", "--slack", "0s", str(rule), str(data)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, env=one_thread())
        seconds = time.perf_counter() - begun
        yield Figure("10 M events, --slack 0s", int(done.stderr) / 1024, "MB", f"in {seconds:.1f} s", 600)


def wall(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=one_thread())
    return time.perf_counter() - begun


def first_line(command: list[str]) -> float:
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=one_thread()) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seconds = time.perf_counter() - begun
        process.kill()
    return seconds


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(TIMES))


# ---------------------------------------------------------------- the table


def show(figures: list[Figure], title: str = "samovar, one core") -> None:
    table = Table(title=f"{title} ({machine()})", title_justify="left")
    for heading, justify in (("what", "left"), ("measured", "right"), ("", "left"), ("aim", "right"), ("note", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for figure in figures:
        aim = "" if figure.target is None else number(figure.target)
        table.add_row(figure.what, number(figure.value), figure.unit, aim, figure.note)
    Console(width=130).print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MB")
