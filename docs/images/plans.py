"""Draws the plans that Spark made, as it tells them: `plan-restore.svg` and `plan-frame.svg` next to this file.

    python docs/images/plans.py

A restore's plan is that of its job on Kafka, which needs no broker to be planned; that of a frame is of a query on the
alerts of a service made by `samovar init`. Light on light pages and dark on dark ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from samovar.changelog.log import TopicPartition
from samovar.changelog.spark.connector_log import Range
from samovar.changelog.spark.parts import FedWork, PartRanges, records_of
from samovar.changelog.spark.session import OpenSession, starting

WIDTH, BOX, GAP = 760, 54, 26
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1c2430 }
  .what { font-size: 12px; fill: #5a6675 }
  rect { fill: #eef2f7; stroke: #9aa7b8 }
  .ours rect { fill: #e3f1ea; stroke: #3f8f68 }
  path { stroke: #7b8897; stroke-width: 1.5; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6ebf2 } .what { fill: #a3afbf }
    rect { fill: #222a35; stroke: #556275 } .ours rect { fill: #1d3a2d; stroke: #4fae80 }
  }
"""
# By the name of a plan's node: what it does here, and whether Python of ours does it.
MEANINGS = {
    "BatchScan KafkaTable": ("Spark's connector: a task for each partition, from one fixed offset to another", False),
    "BatchScan samovar": ("Samovar's reader: a task for each stretch of a partition, as Arrow batches", True),
    "MapInArrow": ("the newest row of each key, in order, to RocksDB table files; what is left is one row", True),
    "Project": ("only the columns that are needed", False),
    "Filter": ("what no reader was asked to leave out", False),
    "HashAggregate": ("counted in each task, then together", False),
    "Exchange": ("rows of a group to one task", False),
    "Sort": ("in order", False),
}


def nodes_of(frame: Any) -> list[str]:
    """The names of a plan's nodes, the reader first. Our plans are chains."""
    node = frame._jdf.queryExecution().executedPlan()
    found = []
    while True:
        name = str(node.nodeName()).strip()
        if name == "AdaptiveSparkPlan":
            node = node.initialPlan()
            continue
        if not name.startswith(("WholeStageCodegen", "InputAdapter")):
            found.append(name)
        children = node.children()
        if not children.size():
            return found[::-1]
        node = children.apply(0)


def restore_plan(session: OpenSession) -> list[str]:
    parts = [PartRanges(None, (Range(TopicPartition("fraud-changelog", number), 0, 1_000),)) for number in range(4)]
    frame = records_of(session, {"bootstrap.servers": "127.0.0.1:1"}, parts)
    work = FedWork(parts=[], ticks=None, numbers=(), has_feed=True, owners={})
    return nodes_of(frame.mapInArrow(work, "part long, made binary"))  # type: ignore[arg-type] # it is called as a function


def frame_plan(session: OpenSession, config: Path) -> list[str]:
    from samovar.service.spark.frames.frame import register_spark  # noqa: PLC0415 - only where it is drawn

    register_spark(session.spark)
    alerts = session.spark.read.format("samovar").options(config=str(config), source="alerts").load()
    return nodes_of(alerts.where("_partition = 0 and severity = 'high'").groupBy("rule").count())


def drawn(title: str, nodes: Sequence[str]) -> str:
    height = 44 + len(nodes) * (BOX + GAP) - GAP + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>",
        f'<text x="20" y="26">{escape(title)}</text>',
    ]
    for number, name in enumerate(nodes):
        top = 44 + number * (BOX + GAP)
        what, is_ours = MEANINGS.get(name, ("", False))
        if number:
            lines.append(f'<path d="M {WIDTH / 2} {top - GAP} V {top - 3} m -5 -6 l 5 6 l 5 -6"/>')
        kind = ' class="ours"' if is_ours else ""
        lines.append(
            f'<g{kind}><rect x="20" y="{top}" width="{WIDTH - 40}" height="{BOX}" rx="6"/>'
            f'<text x="36" y="{top + 23}">{escape(name)}</text>'
            f'<text class="what" x="36" y="{top + 42}">{escape(what)}</text></g>'
        )
    return "\n".join([*lines, "</svg>", ""])


def pictures(session: OpenSession, config: Path) -> dict[str, str]:
    """By file name."""
    return {
        "plan-restore.svg": drawn("samovar restore --engine spark, from a changelog on Kafka", restore_plan(session)),
        "plan-frame.svg": drawn("alerts by rule, of one partition, by spark.read", frame_plan(session, config)),
    }


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory() as scratch,
        starting("plans", "local[2]", kafka=True, settings={"spark.driver.memory": "1g"}) as start,
    ):
        shop = Path(scratch) / "shop"
        for command in (
            ["init", shop],
            ["produce", shop / "service.yml", "purchase", shop / "events.jsonl"],
            ["run", shop / "service.yml", "--until-caught-up"],
        ):
            program = [sys.executable, "-m", "samovar.service.cli", *map(str, command)]
            subprocess.run(program, check=True, capture_output=True)
        for file, text in pictures(start.ready(), shop / "service.yml").items():
            Path(__file__).with_name(file).write_text(text, "utf-8")
