"""Reads what is in deploy/: the Dockerfile, and the queries of Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

from samovar.service.ops.metrics import ARCHIVE_METRICS, HTTP_METRICS, METRICS, Kind, Spec
from tests.support.project import ROOT

DEPLOY = ROOT / "deploy"
SCRAPED = {"job", "instance"}  # labels that Prometheus adds

# What a dashboard offers to choose from: Grafana's own, and not of PromQL.
_VALUES = re.compile(r"^label_values\((\w+), (\w+)\)$")


@dataclass(frozen=True)
class Query:
    """An expression, and where it stands."""

    place: str
    text: str


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


# ---------------------------------------------------------------- queries


def alert_rules() -> list[dict[str, Any]]:
    (alerts,) = documents(DEPLOY / "prometheus" / "alerts.yml")
    return [rule for group in alerts["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana" / "dashboards" / "samovar.json").read_text("utf-8"))
    return found


def queries() -> Iterator[Query]:
    for rule in alert_rules():
        yield Query(rule["alert"], rule["expr"])
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield Query(panel["title"], target["expr"])
    for variable in dashboard()["templating"]["list"]:
        yield Query(variable["name"], variable["query"]["query"])


def served() -> dict[str, Spec]:
    """Every metric by the name under which Prometheus knows it."""
    found: dict[str, Spec] = {}
    for name, spec in (METRICS | HTTP_METRICS | ARCHIVE_METRICS).items():
        endings = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
        found |= {f"samovar_{name}{ending}": spec for ending in endings[spec.kind]}
    return found


def faults_of(query: Query) -> Iterator[str]:
    """What is wrong with a query as Prometheus reads it, and what it asks for that no container serves."""
    try:
        tree = list(_parts(promql_parser.parse(_VALUES.sub(r"count by (\2) (\1)", query.text))))
    except ValueError as error:
        yield f"{query.place}: {error}"
        return
    labels = set(SCRAPED)
    for part, in_range in tree:
        if isinstance(part, promql_parser.VectorSelector) and part.name != "up":  # Prometheus' own
            name = part.name or "with no name"
            spec = served().get(name)
            if spec is None:
                yield f"{query.place}: there is no metric {name}"
                continue
            own = {*spec.labels, *SCRAPED} | ({"le"} if name.endswith("_bucket") else set())
            labels |= own
            asked = {matcher.name for matcher in part.matchers.matchers}
            yield from (f"{query.place}: {part.name} has no label {label}" for label in sorted(asked - own))
            if spec.kind is Kind.COUNTER and not in_range:
                yield f"{query.place}: {part.name} is a counter: ask for its rate"
    grouped = {label for part, _ in tree for label in _grouped(part)}
    yield from (f"{query.place}: no metric has the label {label}" for label in sorted(grouped - labels))


def _parts(part: Any, in_range: bool = False) -> Iterator[tuple[Any, bool]]:
    """An expression and all that it is made of, each with whether it stands under a range such as `[5m]`."""
    yield part, in_range
    in_range = in_range or isinstance(part, promql_parser.MatrixSelector)
    inner = [getattr(part, name, None) for name in ("lhs", "rhs", "expr", "param", "vector_selector")]
    for each in [*inner, *getattr(part, "args", ())]:
        if each is not None:
            yield from _parts(each, in_range)


def _grouped(part: Any) -> list[str]:
    """The labels that `by`, `without`, `on`, `ignoring` and `group_left` name."""
    modifier = getattr(part, "modifier", None)
    matching = getattr(modifier, "matching", None)
    found = (
        getattr(modifier, "labels", None),
        getattr(matching, "labels", None),
        getattr(modifier, "group_labels", None),
    )
    return [label for labels in found for label in labels or ()]


# ---------------------------------------------------------------- the Dockerfile


@dataclass(frozen=True)
class Instruction:
    word: str
    text: str


def instructions() -> list[Instruction]:
    lines = [line for line in (DEPLOY / "Dockerfile").read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    parts = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [Instruction(word, text.strip()) for word, _, text in parts]


def stages() -> list[list[Instruction]]:
    """Instructions by stage, each beginning with its FROM."""
    found: list[list[Instruction]] = []
    for each in instructions():
        if each.word == "FROM":
            found.append([])
        if found:
            found[-1].append(each)
    return found


def last_stage(word: str) -> list[str]:
    return [each.text for each in stages()[-1] if each.word == word]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for text in last_stage("ENV") for pair in text.split())
