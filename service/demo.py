"""`samovar demo`: the example rules at work on generated streams, in memory, with no server.

The streams and so the alerts are the same every time; only the rates differ from machine to machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from samovar.patterns.compile import Program, compile_rules
from samovar.patterns.follow import iso_time
from samovar.patterns.loading import load_set, rendered
from samovar.patterns.native import Decoder
from samovar.patterns.replay import Lines, Replay
from samovar.patterns.schema import Schema
from samovar.service.generate import generate_blocks
from samovar.service.score import RuleScore, detects, read_labels, score

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SEED = 7
KEYS = 3_000
DISORDER_MS = 2_000
SHOWN_EVENTS = 3  # of an alert
COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan", "info": "dim"}
REPORTED = ("medium", "high", "critical")  # severities of which the first alert of each rule is shown


class DemoError(Exception):
    """The demo cannot run here; the text says why."""


@dataclass(frozen=True)
class Shown:
    """What one stream gave."""

    kind: str
    events: int
    seconds: float
    scores: tuple[RuleScore, ...]


def demo(console: Console, events: int) -> None:
    """Both streams one after the other, then a summary."""
    shown = []
    for kind, text in (("fraud", "cards, accounts and orders"), ("sessions", "visits to a shop")):
        console.print(f"\n[bold]{kind}[/bold]: {events:,} generated events of {text}, up to 2 s out of order")
        shown.append(run_stream(console, kind, events))
    console.print()
    console.print(summary(shown))
    console.print("Try it yourself: samovar generate fraud --events 200000 --out events.jsonl")
    console.print("                 samovar match examples/fraud/rules events.jsonl --score")


def run_stream(console: Console, kind: str, events: int) -> Shown:
    program = load_pack(kind)
    blocks = [
        "".join(line + "\n" for line in block) for block in generate_blocks(kind, events, KEYS, SEED, DISORDER_MS)
    ]
    lines = [line for block in blocks for line in block.splitlines()]
    first_of = dict.fromkeys(plan.rule.id for plan in program.rules if plan.rule.severity in REPORTED)
    matches: list[dict[str, Any]] = []
    begun = time.perf_counter()
    for record in found_in(program, blocks):
        matches.append(record)
        if record["rule"] in first_of:
            del first_of[record["rule"]]
            show_alert(console, program, record, lines)
    seconds = time.perf_counter() - begun
    result = score(matches, read_labels(lines), detects(plan.rule for plan in program.rules))
    return Shown(kind, len(lines), seconds, result.rules)


def found_in(program: Program, blocks: list[str]) -> Iterator[dict[str, Any]]:
    """The alerts, as they are found."""
    replay = Replay(program, slack_ms=DISORDER_MS)
    lines = Lines(Decoder(program.fields), lambda _: None)
    for block in blocks:
        yield from replay.feed(lines.take(block.encode()))
    for found in replay.finish():
        yield from found


def load_pack(kind: str) -> Program:
    folder = EXAMPLES / kind
    if not folder.is_dir():
        raise DemoError(f"the demo needs the examples of the source tree, and there is no {folder}")
    loaded = load_set([folder / "rules"], schema=Schema.parse((folder / "schema.yml").read_text("utf-8")))
    if loaded.errors:
        raise DemoError(rendered(loaded.errors))
    return compile_rules(loaded.rules)


# ---------------------------------------------------------------- what is shown


def show_alert(console: Console, program: Program, record: Mapping[str, Any], lines: list[str]) -> None:
    rule = next(plan.rule for plan in program.rules if plan.rule.id == record["rule"])
    key = ", ".join(f"{name}={value}" for name, value in record["key"].items())
    colour = COLOURS[rule.severity]
    head = f"[{colour}]{rule.severity:8}[/{colour}] [bold]{rule.id}[/bold] {escape(key)}  {iso_time(record['at'])}"
    console.print(head, highlight=False, soft_wrap=True)
    console.print(f"         {escape(record.get('message') or rule.title)}", highlight=False, soft_wrap=True)
    places = [(step, place) for step, taken in record["steps"].items() for place in taken]
    for step, place in places[:SHOWN_EVENTS]:
        console.print(
            f"         [dim]{escape(f'{step}: {event_text(lines[place])}')}[/dim]", highlight=False, soft_wrap=True
        )
    if len(places) > SHOWN_EVENTS:
        console.print(f"         [dim]and {len(places) - SHOWN_EVENTS} more events[/dim]", highlight=False)


def event_text(line: str) -> str:
    event = json.loads(line)
    hidden = ("type", "ts", "fraud_kind", "fraud_id")
    fields = ", ".join(f"{name}={value}" for name, value in event.items() if name not in hidden)
    return f"{event['type']} {fields}"


def summary(shown: list[Shown]) -> Table:
    total = sum(part.events for part in shown)
    seconds = sum(part.seconds for part in shown)
    rules = sum(len(part.scores) for part in shown)
    table = Table(title=f"{total:,} events through {rules} rules in {seconds:.1f} s")
    for heading in ("rule", "alerts", "planted", "precision", "recall"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for part in shown:
        for row in part.scores:
            planted = f"{row.planted:,}" if row.planted else "-"
            precision, recall = (percent(value) for value in (row.precision, row.recall))
            table.add_row(row.rule, f"{row.alerts:,}", planted, precision, recall)
        table.add_section()
    return table


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
