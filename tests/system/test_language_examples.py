"""Every example of the language's description, with events and what its sentences say of them.

Times are seconds from the start of each list: `3 buy {...}` is an event of type `buy` three seconds in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tests.support.matching import Match, matches_of

T0 = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC, a Tuesday
MINUTE, DAY = 60, 86_400


def events_of(lines: str) -> list[dict[str, Any]]:
    """An event per line: seconds, type, fields."""
    events = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        seconds, kind, *fields = line.split(" ", 2)
        event: dict[str, Any] = {"type": kind, "ts": T0 + round(float(seconds) * 1000)}
        events.append(event | (yaml.safe_load(fields[0]) if fields else {}))
    return events


def rule_of(match: str, **sections: str) -> str:
    lines = ["rule: example", "match: |", *(f"  {line}" for line in match.strip("\n").split("\n"))]
    return "\n".join([*lines, *(f"{name}: {value}" for name, value in sections.items()), ""])


def found(match: str, lines: str, /, sections: dict[str, str] | None = None, **options: Any) -> list[Match]:
    return matches_of(rule_of(match, **(sections or {})), events_of(lines), **options)


def ends(match: str, lines: str, /, **sections: str) -> list[list[int]]:
    """The lines of each match's events, step by step."""
    return [[at for step in one["steps"].values() for at in step] for one in found(match, lines, sections)]


def seconds(matches: Sequence[Match], name: str = "at") -> list[float]:
    return [(match[name] - T0) / 1000 for match in matches]


# ---------------------------------------------------------------- the rule at the top

CARD_TESTING = """
rule: card-testing
title: Card testing, then a large purchase
severity: high
tags: [fraud]
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > 200 and country != probe.country] as big
emit:
  probes: count(probe)
  spent: sum(probe.amount) + big.amount
message: "{count(probe)} small ones, then {big.amount} in {big.country}"
suppress: 1h
let: {bin: "substring(card, 0, 6)"}
params: {limit: 200}
lists: {risky: [KP, IR]}
"""
PROBES = """
0 purchase {card: c1, amount: 1, country: US}
5 purchase {card: c1, amount: 1, country: US}
9 purchase {card: c1, amount: 1, country: US}
"""


def test_three_small_ones_then_a_big_one_abroad() -> None:
    events = events_of(PROBES + "60 purchase {card: c1, amount: 900, country: SG}")
    (match,) = matches_of(CARD_TESTING, events)
    assert (match["rule"], match["key"]) == ("card-testing", {"card": "c1"})
    assert [match[name] - T0 for name in ("start", "end", "at")] == [0, 60_000, 60_000]
    assert match["steps"] == {"probe": [0, 1, 2], "big": [3]}
    assert match["emit"] == {"probes": 3, "spent": 903}
    assert match["message"] == "3 small ones, then 900 in SG"


@pytest.mark.parametrize(
    "last",
    [
        "60 purchase {card: c1, amount: 900, country: US}",  # at home
        "60 purchase {card: c1, amount: 200, country: SG}",  # not large
        "60 purchase {card: c2, amount: 900, country: SG}",  # another card
        "601 purchase {card: c1, amount: 900, country: SG}",  # the first probe is over ten minutes old: two are left
        "60 purchase {card: c1, amount: 900}",  # a comparison with null is false
        "60 refund {card: c1, amount: 900, country: SG}",
    ],
)
def test_no_card_testing(last: str) -> None:
    assert matches_of(CARD_TESTING, events_of(PROBES + last)) == []


def test_a_span_includes_its_end() -> None:
    assert matches_of(CARD_TESTING, events_of(PROBES + "600 purchase {card: c1, amount: 900, country: SG}"))


def test_at_most_one_alert_an_hour() -> None:
    """While t - t0 <= 1h of the last alert; what was not told does not put the next one off."""
    lines = ""
    for start in (0, 1800, 3540, 3700):
        lines += (
            PROBES.replace("0 p", f"{start} p", 1).replace("5 p", f"{start + 5} p").replace("9 p", f"{start + 9} p")
        )
        lines += f"{start + 60} purchase {{card: c1, amount: 900, country: SG}}\n"
    events = events_of(lines)
    assert seconds(matches_of(CARD_TESTING, events)) == [60, 3760]
    every = matches_of(CARD_TESTING, events, show_suppressed=True)
    assert [match.get("suppressed", False) for match in every] == [False, True, True, False]
    assert seconds(every) == [60, 1860, 3600, 3760]


def test_a_computed_field_is_used_like_a_field_also_in_by() -> None:
    text = """
rule: example
match: |
  sequence by bin with maxspan=1m
    [purchase where bin != "000000"] as a
    [purchase where country in $risky and amount > $limit] as b
let: {bin: "substring(card, 0, 6)"}
params: {limit: 200}
lists: {risky: [KP, IR]}
"""
    events = events_of("""
        0 purchase {card: "1234567", amount: 1, country: US}
        1 purchase {card: "1234560", amount: 200, country: KP}
        2 purchase {card: "1234561", amount: 201, country: FR}
        3 purchase {card: "9999999", amount: 201, country: KP}
        4 purchase {card: "1234562", amount: 201, country: IR}
        5 purchase {card: "0000001", amount: 1, country: US}
        6 purchase {card: "0000002", amount: 500, country: IR}
    """)
    (match,) = matches_of(text, events)
    assert (match["key"], match["steps"]["b"]) == ({"bin": "123456"}, [4])


# ---------------------------------------------------------------- forms

CARTS = """
session by user with gap=30m [any where true] [cart where true] as cart [pay where true] as pay
  having count(cart) > 0 and count(pay) == 0
"""


def test_a_cart_that_was_left() -> None:
    lines = """
        0 view {user: a}
        60 cart {user: a}
        1860 view {user: a}
        0 view {user: b}
        60 cart {user: b}
        120 pay {user: b}
        0 view {user: c}
        3661 cart {user: a}
    """
    first, second = found(CARTS, lines)
    assert (first["key"], first["steps"]) == ({"user": "a"}, {"events": [0, 1, 2]})
    assert [seconds([first], name) for name in ("start", "end", "at")] == [[0], [1860], [3660]]
    assert first["emit"] == {"count": 3}
    assert (second["steps"], seconds([second])) == ({"events": [7]}, [5461])


def test_events_are_read_each_once() -> None:
    """An event enters every bracket that it fits, and is one event of the session."""
    (match,) = found(CARTS, "0 cart {user: a}\n1 cart {user: a}", {"emit": '{carts: "count(cart)", all: count()}'})
    assert match["emit"] == {"count": 2, "carts": 2, "all": 2}


def test_a_session_is_cut_by_max() -> None:
    lines = "\n".join(f"{second} a {{user: u}}" for second in range(0, 25, 4))
    one, two, three = found("session by user with gap=5s, max=10s [a where true]", lines)
    assert [match["steps"]["events"] for match in (one, two, three)] == [[0, 1, 2], [3, 4, 5], [6]]
    # Cut at start + max; an event there would still belong. The last one is never followed.
    assert seconds([one, two, three]) == [10, 22, 29]


def test_windows_tumble_and_hop_from_the_epoch() -> None:
    lines = "0 a {user: u}\n19 a {user: u}\n20 a {user: u}\n45 a {user: u}"
    assert T0 % 40_000 == 0
    tumbling = found("window by user every 40s [a where true]", lines)
    assert [(seconds([one], "start")[0], seconds([one])[0], one["steps"]["events"]) for one in tumbling] == [
        (0, 40, [0, 1, 2]),
        (40, 80, [3]),
    ]
    hopping = found("window by user every 20s, size=40s [a where true]", lines)
    assert [(seconds([one], "start")[0], seconds([one])[0], one["steps"]["events"]) for one in hopping] == [
        (-20, 20, [0, 1]),
        (0, 40, [0, 1, 2]),
        (20, 60, [2, 3]),
        (40, 80, [3]),
    ]


def test_an_aggregate_fires_when_having_turns_true() -> None:
    rule = "aggregate by user over 10s [fail where true] having count() >= 3"
    lines = "\n".join(f"{second} fail {{user: u}}" for second in (0, 1, 2, 3, 12))
    one, two = found(rule, lines)
    # At 12 s the window is trimmed to those from 2 s on: two, so the rule re-arms, and the new one is the third.
    assert [one["steps"]["events"], two["steps"]["events"]] == [[0, 1, 2], [2, 3, 4]]
    assert [seconds([one, two], name) for name in ("start", "end", "at")] == [[0, 2], [2, 12], [2, 12]]


def test_repeat_alerts_again_while_having_holds() -> None:
    rule = "aggregate by user over 1h, repeat=10s [fail where true] having count() >= 2"
    lines = "\n".join(f"{second} fail {{user: u}}" for second in (0, 1, 2, 10, 11, 20, 22))
    assert seconds(found(rule, lines)) == [1, 11, 22]


def test_aggregate_functions() -> None:
    functions = "count() sum(n) avg(n) min(n) max(n) stddev(n) distinct(f) first(f) last(f) values(f) sum(n*2) count(b)"
    emit = "{" + ", ".join(f'e{place}: "{function}"' for place, function in enumerate(functions.split())) + "}"
    lines = "0 a {n: 1, f: p}\n1 a {n: 3, f: q}\n2 a {f: p}\n3 b {n: 8}"
    (match,) = found("window every 1h [a where true] [b where true] as b", lines, {"emit": emit})
    values = [match["emit"][f"e{place}"] for place in range(12)]
    # Nulls are left out; stddev is of the population: 1, 3 and 8 have a mean of 4 and a variance of 26 / 3.
    assert values == [4, 12, 4, 1, 8, pytest.approx((26 / 3) ** 0.5), 2, "p", "p", ["p", "q"], 24, 1]


# ---------------------------------------------------------------- steps


def test_runs() -> None:
    lines = "0 a\n1 a\n2 a\n3 a\n4 b"
    assert ends("sequence with maxspan=1m [a where true] with runs=3 [b where true]", lines) == [[1, 2, 3, 4]]
    assert ends("sequence with maxspan=1m [a where true] with runs=3.. [b where true]", lines) == [[0, 1, 2, 3, 4]]
    assert ends("sequence with maxspan=1m [a where true] with runs=2..3 [b where true]", lines) == [[1, 2, 3, 4]]
    assert ends("sequence with maxspan=1m [a where true] with runs=5.. [b where true]", lines) == []


def test_optional() -> None:
    rule = "sequence with maxspan=1m [a where true] as a ?[b where true] as b [c where true] as c"
    assert [match["steps"] for match in found(rule, "0 a\n1 c\n2 a\n3 b\n4 c")] == [
        {"a": [0], "c": [1]},
        {"a": [2], "b": [3], "c": [4]},
    ]


def test_must_not_happen_between() -> None:
    rule = "sequence by u with maxspan=1m [a where true] ![x where true] [b where true]"
    assert ends(rule, "0 a {u: 1}\n1 b {u: 1}") == [[0, 1]]
    assert ends(rule, "0 a {u: 1}\n1 x {u: 1}\n2 b {u: 1}") == []
    assert ends(rule, "0 a {u: 1}\n1 x {u: 2}\n2 b {u: 1}") == [[0, 2]]
    both = "sequence with maxspan=1m [a where true] ![any where n == 1] [b where true]"
    assert ends(both, "0 a {n: 0}\n1 b {n: 1}\n2 b {n: 0}") == []  # both x and the next step: it kills


def test_must_not_happen_last() -> None:
    rule = "sequence by u with maxspan=1m [a where true] ![x where true]"
    (match,) = found(rule, "0 a {u: 1}\n0 a {u: 2}\n60 x {u: 2}\n61 x {u: 1}")
    assert (match["key"], seconds([match], "end"), seconds([match])) == ({"u": 1}, [0], [60])
    sooner = "sequence by u with maxspan=1m [a where true] [b where true] ![x where true] with within=5s"
    (match,) = found(sooner, "0 a {u: 1}\n10 b {u: 1}\n16 x {u: 1}")
    assert (seconds([match], "end"), seconds([match])) == ([10], [15])


def test_must_not_happen_first() -> None:
    rule = "sequence with maxspan=1m ![x where true] with for=10s [a where true] [b where true]"
    assert ends(rule, "0 x\n10 a\n11 b") == []
    assert ends(rule, "0 x\n10.001 a\n11 b") == [[1, 2]]
    assert ends(rule, "0 a\n1 x\n2 b") == [[0, 2]]  # only events before step 1 count


def test_next_is_strictly_the_next_event_of_the_key() -> None:
    rule = "sequence by u with maxspan=1m [a where true] next [b where true]"
    assert ends(rule, "0 a {u: 1}\n1 b {u: 1}") == [[0, 1]]
    assert ends(rule, "0 a {u: 1}\n1 unknown {u: 1}\n2 b {u: 1}") == []
    assert ends(rule, "0 a {u: 1}\n1 unknown {u: 2}\n2 b {u: 1}") == [[0, 2]]


def test_within_and_after() -> None:
    rule = "sequence with maxspan=1m [a where true] [b where true] with within=5s, after=2s"
    assert [ends(rule, f"0 a\n{second} b") for second in (1, 2, 5, 5.001)] == [[], [[0, 1]], [[0, 1]], []]


def test_either() -> None:
    rule = "sequence with maxspan=1m [a where n > 1] or [b where true] as s [c where true]"
    assert [match["steps"] for match in found(rule, "0 a {n: 1}\n1 c\n2 a {n: 2}\n3 c\n4 b\n5 c")] == [
        {"s": [2], "step2": [3]},
        {"s": [4], "step2": [5]},
    ]


def test_a_key_under_another_name() -> None:
    rule = "sequence by user with maxspan=1m [login where true] [wire where true] by account"
    (match,) = found(rule, "0 login {user: x, account: y}\n1 wire {user: x, account: y}\n2 wire {account: x}")
    assert (match["key"], match["steps"]) == ({"user": "x"}, {"step1": [0], "step2": [2]})


def test_unordered() -> None:
    rule = "sequence with maxspan=1m unordered { [x where true] as a  [y where true] as b } [z where true] as c"
    assert [match["steps"] for match in found(rule, "0 y\n1 x\n2 z\n3 x\n4 x\n5 z\n6 y\n7 z")] == [
        {"a": [1], "b": [0], "c": [2]},
        {"a": [4], "b": [6], "c": [7]},
    ]


def test_until() -> None:
    rule = "sequence by u with maxspan=1m [a where true] [b where true] until [logout where true]"
    assert ends(rule, "0 a {u: 1}\n1 logout {u: 1}\n2 b {u: 1}\n3 a {u: 1}\n4 logout {u: 2}\n5 b {u: 1}") == [[3, 5]]


def test_having() -> None:
    rule = "sequence with maxspan=1m [a where true] as a [b where true] as b having a.n + b.n > 10"
    assert ends(rule, "0 a {n: 5}\n1 b {n: 5}\n2 b {n: 6}") == [[0, 2]]


# ---------------------------------------------------------------- overlap and skip


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("overlap=latest", [[1, 2, 3]]),
        ("overlap=all", [[0, 2, 3]]),
        ("overlap=all, skip=to_next", [[0, 2, 3], [1, 2, 3]]),
        ("overlap=all, skip=none", [[0, 2, 3], [1, 2, 3]]),
        ("overlap=any", [[0, 2, 3]]),
        ("overlap=any, skip=to_next", [[0, 2, 3], [1, 2, 3]]),
        ("overlap=any, skip=none", [[0, 2, 3], [1, 2, 3], [0, 2, 4], [0, 3, 4], [1, 2, 4], [1, 3, 4]]),
    ],
)
def test_overlap_and_skip(options: str, wanted: list[list[int]]) -> None:
    """Two a, b, then an event that is b and c, then c: combinations a b c that end at lines 3 and 4."""
    rule = f"sequence with maxspan=1m, {options} [a where true] [any where b == 1] [any where c == 1]"
    assert ends(rule, "0 a\n1 a\n2 x {b: 1}\n3 x {b: 1, c: 1}\n4 x {c: 1}") == wanted


# ---------------------------------------------------------------- conditions


CONDITIONS: dict[str, list[dict[str, Any]]] = {
    "n == 1": [{"n": 1}, {"n": 1.0}],
    "n != 1": [{"n": 2}, {"n": "1"}],
    "n < 1": [{"n": 0}, {"n": -0.5}],
    "n <= 1 and n >= 1": [{"n": 1}],
    "not n > 1": [{"n": 1}, {"n": None}, {}],  # `not` of a null comparison is true
    "n == null": [{"n": None}, {}],
    "n in (1, 2)": [{"n": 2}],
    "f in $risky": [{"f": "KP"}],
    'f like "a*"': [{"f": "a"}, {"f": "abc"}],
    'f like "a?c"': [{"f": "abc"}],
    'f regex "b+"': [{"f": "abbc"}],
    "n + 1 == 3 and n * 2 == 4 and n - 1 == 1": [{"n": 2}],
    "n / 2 == 1.5": [{"n": 3}],
    "n % 3 == -1": [{"n": -4}],
    "n / 0 == null": [{"n": 1}],
    'lower(f) == "ab" and upper(f) == "AB"': [{"f": "aB"}],
    'length(f) == 2 and starts_with(f, "a") and ends_with(f, "b")': [{"f": "ab"}],
    'contains(f, "bc") and substring(f, 1, 3) == "bc" and index_of(f, "c") == 2': [{"f": "abcd"}],
    'concat(f, "-", string(n)) == "a-1" and concat(f, n) == null': [{"f": "a", "n": 1}],
    "number(f) == 12 and string(n) == '12'".replace("'", '"'): [{"f": "12", "n": 12}],
    "round(n) == 3 and floor(n) == 2 and ceil(n) == 3 and abs(0 - n) == n": [{"n": 2.5}],
    "round(n, 1) == -0.3": [{"n": -0.25}],
    "coalesce(n, 7) == 7": [{"n": None}, {"n": 7}],
    "hour(@time) == 22 and day_of_week(@time) == 2": [{}],
    'hour(@time, "Europe/Berlin") == 23': [{}],
    'cidr(ip, "10.0.0.0/8", "192.168.0.0/16")': [{"ip": "10.1.2.3"}, {"ip": "192.168.9.9"}],
    "distance_km(lat, lon, 48.85, 2.35) > 800 and distance_km(lat, lon, 48.85, 2.35) < 900": [
        {"lat": 52.52, "lon": 13.4}
    ],
    '@type == "e" and @time > 1600000000000': [{}],
    'process.name == "x"': [{"process": {"name": "x"}}, {"process.name": "x"}],
}
FAILS: list[dict[str, Any]] = [
    {"n": "text", "f": 5, "ip": "not an address"},
    {"n": 77, "f": "nothing", "ip": "11.0.0.1", "lat": 0, "lon": 0, "process": {"name": "y"}},
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions(condition: str) -> None:
    rule = rule_of(f"sequence with maxspan=1s [e where {condition}]", lists="{risky: [KP, IR]}")
    fitting = CONDITIONS[condition]
    events = [{"type": "e", "ts": T0 + at * 1000, **fields} for at, fields in enumerate(fitting)]
    assert [match["steps"] for match in matches_of(rule, events)] == [{"step1": [at]} for at in range(len(fitting))]


@pytest.mark.parametrize("condition", [one for one in CONDITIONS if not ("@time" in one or "not" in one)])
def test_conditions_that_do_not_hold(condition: str) -> None:
    rule = rule_of(f"sequence with maxspan=1s [e where {condition}]", lists="{risky: [KP, IR]}")
    other_types = [] if condition in ("n != 1", "n / 0 == null") else FAILS
    assert matches_of(rule, [{"type": "e", "ts": T0, **fields} for fields in other_types]) == []


# ---------------------------------------------------------------- history


def test_a_new_device() -> None:
    rule = "sequence by user with maxspan=1m [login where not seen(device, 90d)]"
    lines = f"""
        0 login {{user: u, device: d}}
        0 login {{user: u, device: d}}
        10 other {{user: u, device: e}}
        20 login {{user: v, device: d}}
        30 login {{user: u, device: e}}
        {90 * DAY} login {{user: u, device: d}}
        {180 * DAY + 1} login {{user: u, device: d}}
    """
    # At 90 days the earlier one still counts: a span includes its end. Null is never seen.
    assert ends(rule, lines) == [[0], [3], [4], [6]]


def test_seen_where_it_was_good() -> None:
    rule = "sequence by user with maxspan=1m [login where not seen(device, 90d where ok == true)]"
    lines = (
        "0 login {user: u, device: d, ok: false}\n1 login {user: u, device: d, ok: true}\n2 login {user: u, device: d}"
    )
    assert ends(rule, lines) == [[0], [1]]


def test_five_times_the_average() -> None:
    rule = "sequence by card with maxspan=1m [buy where amount > 5 * avg(amount, 30d)]"
    amounts = [100, 10, 280, 1000, 6000]
    lines = "\n".join(f"{at} buy {{card: c, amount: {amount}}}" for at, amount in enumerate(amounts))
    # Averages before: none, 100, 55, 130, 347.5. A comparison with null is false, so the first one is not large.
    assert ends(rule, lines) == [[2], [3], [4]]
    assert ends(rule, lines + f"\n{30 * DAY + 4} buy {{card: c, amount: 30001}}") == [[2], [3], [4], [5]]


def test_two_events_in_short_order() -> None:
    rule = "sequence by u with maxspan=1m [click where @time - prev(@time, 1h) < 200]"
    lines = "0 click {u: 1}\n0.2 click {u: 1}\n0.399 click {u: 1}\n0.5 click {u: 2}\n3700 click {u: 1}"
    assert ends(rule, lines) == [[2]]


def test_counting_and_adding_what_was() -> None:
    lines = "\n".join(
        f"{at} e {{n: {n}, f: {f}}}" for at, (n, f) in enumerate([(1, "p"), (5, "q"), (3, "p"), (2, "p")])
    )

    def last_holds(condition: str) -> bool:
        return [3] in ends(f"sequence with maxspan=0ms [e where {condition}]", lines)

    # At the last event the three before it are 1, 5 and 3.
    assert last_holds("count(1h) == 3 and sum(n, 1h) == 9 and min(n, 1h) == 1 and max(n, 1h) == 5")
    assert last_holds("distinct(f, 1h) == 2 and prev(n, 1h) == 3 and prev(f, 1h) == f")
    assert last_holds('count(1h where f == "p") == 2 and sum(n, 1h where n > 1) == 8 and max(n, 2s) == 5')
    assert last_holds("count(1s) == 1 and prev(n, 1h where n > 3) == 5")


# ---------------------------------------------------------------- steps read by name


def test_a_step_is_read_by_its_name() -> None:
    rule = """
sequence by user with maxspan=3h
  [login where true] as a with runs=2..
  [wire where @time - a.@time < 2h and amount > sum(a.n) and first(a.n) == 1 and count(a) == 2] as b"""
    assert ends(rule, "0 login {user: u, n: 1}\n60 login {user: u, n: 2}\n7259 wire {user: u, amount: 4}") == [
        [0, 1, 2]
    ]
    assert ends(rule, "0 login {user: u, n: 1}\n60 login {user: u, n: 2}\n7260 wire {user: u, amount: 4}") == []
    assert ends(rule, "0 login {user: u, n: 1}\n60 login {user: u, n: 2}\n7259 wire {user: u, amount: 3}") == []


def test_a_repeated_step_reads_what_it_has_taken() -> None:
    rule = "sequence with maxspan=1m [a where a.n == null or n > a.n] as a with runs=3 [b where true]"
    assert ends(rule, "0 a {n: 1}\n1 a {n: 0}\n2 a {n: 2}\n3 a {n: 3}\n4 b") == [[0, 2, 3, 4]]


# ---------------------------------------------------------------- heartbeat

HEARTBEAT = "sequence by host with maxspan=1h [heartbeat where true] ![heartbeat where true] with within=15m"


def test_a_heartbeat_that_stops() -> None:
    """An event that kills a waiting absence may start again."""
    minutes = (0, 10, 25, 50, 60)
    lines = "\n".join(f"{at * MINUTE} heartbeat {{host: h}}" for at in minutes)
    # Ten and fifteen minutes are in time; after the third beat a quarter of an hour goes by, and after the last.
    stopped = found(HEARTBEAT, lines)
    assert [match["steps"]["step1"] for match in stopped] == [[2], [4]]
    assert seconds(stopped) == [40 * MINUTE, 75 * MINUTE]
    assert seconds(stopped, "end") == [25 * MINUTE, 60 * MINUTE]


def test_without_flush_a_timer_fires_only_below_the_largest_time() -> None:
    lines = "0 heartbeat {host: h}\n900 heartbeat {host: other}"
    assert found(HEARTBEAT, lines, flush=False) == []
    assert seconds(found(HEARTBEAT, lines + "\n900.001 x", flush=False)) == [900]


# ---------------------------------------------------------------- keys and values


def test_keys_keep_their_type_and_null_is_none() -> None:
    rule = "sequence by u with maxspan=1m [a where true] [b where true]"
    lines = '0 a {u: 1}\n1 b {u: "1"}\n2 a {u: null}\n3 b {u: null}\n4 a\n5 b\n6 b {u: 1.0}'
    assert ends(rule, lines) == [[0, 6]]


def test_no_key_is_one_key_for_all() -> None:
    (match,) = found("sequence with maxspan=1m [a where true] [b where true]", "0 a {u: 1}\n1 b {u: 2}")
    assert match["key"] == {}
