"""Reads what is in deploy/: the Dockerfile, and the queries of Prometheus and Grafana."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from samovar.service.metrics_list import HTTP_METRICS, METRICS, Kind, Spec

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
SCRAPED = {"job", "instance"}  # labels that Prometheus adds

_METRIC = re.compile(r"\b(samovar_\w+)\s*(\{[^}]*\})?")
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")


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
    for name, spec in (METRICS | HTTP_METRICS).items():
        endings = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
        found |= {f"samovar_{name}{ending}": spec for ending in endings[spec.kind]}
    return found


def faults_of(query: Query) -> Iterator[str]:
    """What a query asks for that no container serves."""
    used = _METRIC.findall(query.text)
    labels = set(SCRAPED)
    for name, selector in used:
        spec = served().get(name)
        if spec is None:
            yield f"{query.place}: there is no metric {name}"
            continue
        own = {*spec.labels, *SCRAPED} | ({"le"} if name.endswith("_bucket") else set())
        labels |= own
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector or ""))
        yield from (f"{query.place}: {name} has no label {label}" for label in sorted(asked - own))
    grouped = {label.strip() for part in _GROUPED.findall(query.text) for label in part.split(",") if label.strip()}
    yield from (f"{query.place}: no metric has the label {label}" for label in sorted(grouped - labels))
    if query.text.count("(") != query.text.count(")"):
        yield f"{query.place}: brackets do not match"
    for found in _METRIC.finditer(query.text):
        spec = served().get(found[1])
        is_rate = query.text[: found.start()].endswith(("rate(", "increase("))
        if spec is not None and spec.kind is Kind.COUNTER and not is_rate:
            yield f"{query.place}: {found[1]} is a counter: ask for its rate"


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
