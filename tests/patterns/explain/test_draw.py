"""Drawings of rules: everything is in them, they fit, and the picture is sound XML."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given

from samovar.patterns.explain.draw.picture import draw_svg
from samovar.patterns.explain.draw.text import draw
from samovar.patterns.rulefile.rule_file import load_paths, load_text
from samovar.patterns.syntax.tree import Rule
from tests.support.random_rules import Fields, rules_and_events

EVERYTHING = """
rule: everything
title: A <long> rule & "all" that it may hold
severity: critical
match: |
  sequence by host with maxspan=1h, overlap=all, skip=none
    ![login where user == "root"] with for=24h
    ?[scan where port > 1024] as scan
    [file where ext in ("exe", "dll")] as drop with runs=2..5
    ![process where name == "av.exe"]
    next [process where signed != true] as run by machine with within=5m
    unordered { [network where port == 443] as out [dns where true] as lookup }
    [logoff where true] or [shutdown where reason != "update"] as end with after=10s
    ![alert where source == "edr"] with within=10m
  until [reimage where true]
  having count(drop) > 2
suppress: 2h
"""

CARD_TESTING = """\
    by card · all within 10m

    ┌─ 1 probe ──────────────────────────┐
    │ purchase                           │ ◄─┐
    │   where amount < 2                 │ ──┘ 3 or more
    └─────────────────┬──────────────────┘
                      │
    ╭╌ ✗ not in between ╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╮
    ╎ refund                             ╎
    ╰╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╯
                      │
 ┌────────────────────┤
 │                    ▼
 │  ┌─ 2 entry (may be left out) ────────┐
 │  │ login                              │
 │  └─────────────────┬──────────────────┘
 └───────────────────►│
                      │
                      │  within 5m
                      ▼
    ┌─ 3 big ────────────────────────────┐
    │ purchase                           │
    │   where amount > 200               │
    └─────────────────┬──────────────────┘
                      │
                      ▼
               ╔════════════╗
               ║ ALERT high ║
               ╚════════════╝
"""


def rule_of(text: str) -> Rule:
    loaded = load_text(text, "r.yml")
    assert loaded.rule is not None, loaded.findings
    return loaded.rule


def form(match: str) -> Rule:
    return rule_of(f"rule: r\nseverity: high\nmatch: |\n  {match}\n")


def texts(svg: str) -> list[str]:
    return [
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")
    ]


def test_text_drawing() -> None:
    match = (
        "sequence by card with maxspan=10m [purchase where amount < 2] as probe with runs=3.. ![refund where true] "
        "?[login where true] as entry [purchase where amount > 200] as big with within=5m"
    )
    assert draw(form(match)) == CARD_TESTING


@pytest.mark.parametrize(
    "part",
    [
        "by host", "all within 1h", "overlap=all", "skip=none", "at most one alert in 2h", "not in the 1d before",
        'where user == "root"', "scan", "may be left out", "drop", "2 to 5", "not in between", "the very next event",
        "within 5m", "process by machine", "in any order", "lookup: dns", "or shutdown", "after 10s",
        "not until 10m after the step before", "10m after the step before", "reimage", "forgotten",
        "having count(drop) > 2",
    ],
)  # fmt: skip
def test_everything_is_drawn(part: str) -> None:
    rule = rule_of(EVERYTHING)
    assert part in draw(rule)
    assert any(part in text for text in texts(draw_svg(rule)))


@pytest.mark.parametrize(
    ("match", "parts"),
    [
        ("aggregate by u over 10m, repeat=2h [a where n > 1] having count() > 5", ["the last 10m", "again every 2h"]),
        (
            "session by u with gap=30m, max=8h [a where true] as x having count(x) > 5",
            ["30m quiet", "8h after its start"],
        ),
        ("window by u every 1h [a where true]", ["1h", "windows by the clock"]),
        ("window by u every 5m, size=1h [a where true]", ["1h", "a new one every 5m"]),
    ],
)
def test_windows_over_a_time_line(match: str, parts: list[str]) -> None:
    rule = form(match)
    for part in parts:
        assert part in draw(rule)
        assert any(part in text for text in texts(draw_svg(rule)))


def test_a_negation_is_red_and_dashed_and_a_way_round_is_drawn() -> None:
    svg = draw_svg(rule_of(EVERYTHING))
    assert svg.count('class="no"') == 3
    assert re.search(r"\.no\{[^}]*stroke:var\(--bad\)[^}]*stroke-dasharray", svg)
    assert 'class="line soft"' in svg
    assert "prefers-color-scheme:dark" in svg


def test_the_picture_needs_nothing_from_elsewhere() -> None:
    svg = draw_svg(rule_of(EVERYTHING))
    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?(?!#)[^\"')]*", svg.replace("url(#tip)", "")) == []
    assert "<script" not in svg
    assert 'aria-label="A &lt;long&gt; rule &amp;' in svg or "aria-label='A &lt;long&gt; rule &amp;" in svg


def test_unseen_characters_are_shown_and_wide_ones_keep_the_frame() -> None:
    rule = rule_of('rule: r\nmatch: |\n  sequence by u with maxspan=1m [a where f == "東京"] [b where true]\n')
    lines = [line for line in draw(rule).splitlines() if "東京" in line]
    assert lines == ['    │   where f == "東京"                │']
    odd = rule_of('rule: r\ntitle: "a\\u0001b\\u202Ec"\nmatch: |\n  sequence by u with maxspan=1m [a where true]\n')
    ElementTree.fromstring(draw_svg(odd))


def test_long_words_are_broken() -> None:
    rule = form(f'sequence by u with maxspan=1m [a where f == "{"x" * 500}" and {"y" * 300} > 1]')
    assert max(map(len, draw(rule).splitlines())) <= 88
    width = re.search(r'viewBox="0 0 (\d+) ', draw_svg(rule))
    assert width is not None
    assert int(width[1]) < 800


@given(rules_and_events())
def test_every_rule_can_be_drawn(case: tuple[str, list[Fields]]) -> None:
    rule = rule_of(case[0])
    assert max(map(len, draw(rule).splitlines())) <= 100
    ElementTree.fromstring(draw_svg(rule))


def test_examples_can_be_drawn(root: Path) -> None:
    for loaded in load_paths([root / "examples" / "fraud" / "rules", root / "examples" / "sessions" / "rules"]):
        assert loaded.rule is not None
        assert max(map(len, draw(loaded.rule).splitlines())) <= 90
        ElementTree.fromstring(draw_svg(loaded.rule))
