"""However the input is cut into batches, and whatever else runs next to a rule: the same matches, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from samovar.common.tunables import Tunables
from samovar.native.kernel import Batch
from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.matcher import END_OF_TIME, States, step
from tests.support.matching import Fields, Match, Options, Store, arrived, as_set, in_order, loaded, part, program_of
from tests.support.random_rules import random_rule
from tests.support.tunables import random_of_test, tiny
from tests.system.test_cases import CASES, read_case

RULES = (
    """
rule: bag
match: |
  sequence by card with maxspan=20s
    [buy where n < 5] as probe with runs=3..
    [buy where n > 7 and place != probe.place] as big
emit: {many: count(probe), spent: sum(probe.n), places: distinct(probe.place)}
""",
    """
rule: unbroken
match: |
  sequence by card with maxspan=30s
    [login where true] as a
    ?[buy where n > 3] as b
    ![logout where true]
    [buy where n > 8] as c
  until [close where true]
suppress: 5s
""",
    """
rule: absence
match: |
  sequence by card with maxspan=10s
    [login where not seen(place, 30s)] as a
    ![logout where true] with within=4s
""",
    """
rule: combinations
match: |
  sequence by card with maxspan=3s, overlap=any, skip=none
    [login where true] as a
    [buy where n > 5] as b with runs=1..2
    [logout where true] as c
""",
    """
rule: next
match: |
  sequence by place with maxspan=10s, overlap=all, skip=to_next
    [login where true] as a
    next [buy where n >= avg(n, 20s)] as b
""",
    """
rule: total
match: |
  aggregate by card over 15s, repeat=5s
    [buy where true] as b
    having sum(n) > 25 and distinct(place) > 1
emit: {least: min(n), spread: stddev(n), all: values(place)}
""",
    """
rule: session
match: |
  session by card, place with gap=4s, max=12s
    [any where true] [buy where true] as b
    having count(b) > 1
emit: {spent: sum(b.n), first: first(n)}
""",
    """
rule: window
match: |
  window by place every 5s, size=10s
    [buy where true]
    having count() > 3
emit: {most: max(n), all: distinct(card)}
""",
)


def many_events(seed: int, count: int, keys: int) -> list[Fields]:
    rng = Random(seed)
    time = 1_700_000_000_000
    events: list[Fields] = []
    for _ in range(count):
        time += rng.choice((0, 0, 3, 40, 200))
        kind = rng.choice(
            ("buy", "buy", "buy", "buy", "login", "login", "logout", "close" if rng.random() < 0.2 else "x")
        )
        card, place = f"card {rng.randrange(keys)}", rng.choice(("here", "there", "somewhere else entirely", None))
        events.append({"type": kind, "ts": time, "card": card, "n": rng.randint(0, 9), "place": place})
    return events


def in_batches(
    program: Program, batch: Batch, sizes: list[int], reload: bool = False, tunables: Callable[[], Tunables] = Tunables
) -> tuple[list[Match], list[str]]:
    """The matches, in order, and the digest after each batch that ends where a thousand rows do."""
    states, store = States(program, hold=not reload, tunables=tunables()), Store()
    found: list[Match] = []
    digests: list[str] = []
    first = number = 0
    while first < len(batch):
        end = min(len(batch), first + sizes[number % len(sizes)])
        # Every thousand rows all runs meet.
        end = min(end, first - first % 1000 + 1000)
        watermark = int(batch.time[end - 1])
        found += step(states, part(batch, first, end), watermark)
        if end % 1000 == 0:
            digests.append(states.digest(watermark))
        if reload:
            store.write(states.changed_rows())
            states = loaded(program, store.rows, Options(tunables=tunables()))
        first, number = end, number + 1
    states.hold(False)
    return [*found, *step(states, part(batch, 0, 0), END_OF_TIME)], digests


@pytest.fixture(scope="module")
def program() -> Program:
    return program_of(*RULES)


@pytest.fixture(scope="module")
def batch(program: Program) -> Batch:
    return in_order(arrived(program, many_events(1, 6000, 30)))


@pytest.fixture(scope="module")
def whole(program: Program, batch: Batch) -> tuple[list[Match], list[str]]:
    return in_batches(program, batch, [1000])


def test_every_rule_finds_something(whole: tuple[list[Match], list[str]], program: Program) -> None:
    """Or the tests below would say little."""
    names = [match["rule"] for match in whole[0]]
    assert all(names.count(plan.rule.id) >= 5 for plan in program.rules), {name: names.count(name) for name in names}


@pytest.mark.parametrize("sizes", [[1], [7], [1, 100, 3], [999]], ids=str)
def test_cuts_change_nothing(
    program: Program, batch: Batch, whole: tuple[list[Match], list[str]], sizes: list[int]
) -> None:
    """Not even the order of the output, where what falls on a cut is held back until the next step."""
    assert in_batches(program, batch, sizes) == whole


@pytest.mark.parametrize("sizes", [[50], [1, 100, 3]], ids=str)
def test_storing_and_loading_changes_nothing(
    program: Program, batch: Batch, whole: tuple[list[Match], list[str]], sizes: list[int]
) -> None:
    found, digests = in_batches(program, batch, sizes, reload=True)
    assert as_set(found) == as_set(whole[0])
    assert digests == whole[1]


@pytest.mark.parametrize("reload", [False, True], ids=["kept", "stored and loaded"])
def test_tunables_change_nothing(
    program: Program, batch: Batch, whole: tuple[list[Match], list[str]], reload: bool
) -> None:
    """However large chunks, headers and slices are, and whatever those were that stored the states."""
    rng = random_of_test()
    found, digests = in_batches(program, batch, [250, 40], reload, lambda: tiny(rng))
    assert as_set(found) == as_set(whole[0])
    assert digests == whole[1]


def test_rules_together_are_the_same_as_each_alone(batch: Batch, whole: tuple[list[Match], list[str]]) -> None:
    for text in RULES:
        program = program_of(text)
        alone, _ = in_batches(program, in_order(arrived(program, many_events(1, 6000, 30))), [1000])
        assert alone == [match for match in whole[0] if match["rule"] == program.rules[0].rule.id]


def test_many_random_rules_together_are_the_same_as_each_alone() -> None:
    """Twenty rules share fields, keys, conditions and histories; a failure names its seed."""
    for seed in range(10):
        rng = Random(seed)
        texts = [random_rule(rng).replace("rule: random", f"rule: random-{n:02}") for n in range(20)]
        events = [
            {"type": rng.choice("aabbccx"), "ts": 1000 * rng.randint(0, 60), "u": "u", "v": "u", "n": rng.randint(0, 3)}
            for _ in range(25)
        ]
        together, alone = program_of(*texts), [program_of(text) for text in texts]
        options = Options(max_partials=50)
        found = step(options.states(together), in_order(arrived(together, events)), END_OF_TIME)
        apart = [list(step(options.states(one), in_order(arrived(one, events)), END_OF_TIME)) for one in alone]
        for number, one in enumerate(apart):
            mine = [match for match in found if match["rule"] == f"random-{number:02}"]
            assert mine == one, f"seed {seed}, rule {number}:\n{texts[number]}"


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_cases_in_any_batches(folder: Path) -> None:
    case = read_case(folder)
    options = Options(case.options.get("flush", True), case.options.get("show_suppressed", False))
    names = {name: case.options[name] for name in ("type_field", "time_field") if name in case.options}
    program = program_of((folder / "rule.yml").read_text())
    batch = in_order(arrived(program, case.events, **names))
    whole = list(step(options.states(program), batch, options.end_of(batch)))
    for size in (1, 2, 5):
        states = options.states(program)
        found: list[Match] = []
        for first in range(0, len(batch), size):
            some = part(batch, first, min(len(batch), first + size))
            found += step(states, some, int(some.time[-1]))
            states = loaded(program, states.rows(), options)
        found += step(states, part(batch, 0, 0), options.end_of(batch))
        assert as_set(found) == as_set(whole)


# ---------------------------------------------------------------- time between batches

ABSENCE = """
rule: r
match: |
  sequence by u with maxspan=10s
    [a where true]
    ![b where true]
"""


def test_a_timer_fires_when_event_time_has_passed_its_deadline() -> None:
    program = program_of(ABSENCE)
    states = States(program)
    batch = in_order(arrived(program, [{"type": "a", "ts": 1000, "u": "x"}]))
    none = part(batch, 0, 0)
    assert [len(step(states, some, time)) for some, time in ((batch, 1000), (none, 11_000))] == [0, 0]
    (match,) = step(states, none, 11_001)
    assert (match["at"], match["end"]) == (11_000, 1000)
    assert states.live() == 0


def test_timers_and_events_of_one_batch_come_out_in_the_order_of_their_time() -> None:
    program = program_of(ABSENCE, "rule: s\nmatch: |\n  sequence with maxspan=1s\n    [c where true]\n")
    events = [
        {"type": "a", "ts": 1000, "u": "x"},
        {"type": "a", "ts": 2000, "u": "y"},
        {"type": "c", "ts": 11_500, "u": "x"},
        {"type": "c", "ts": 13_000, "u": "x"},
    ]
    found = step(States(program), in_order(arrived(program, events)), 20_000)
    assert [(match["rule"], match["at"]) for match in found] == [
        ("r", 11_000),
        ("s", 11_500),
        ("r", 12_000),
        ("s", 13_000),
    ]


def test_matches_at_the_watermark_are_held_where_asked() -> None:
    """A later batch may still bring an event of the same time that comes first in the output."""
    program = program_of(ABSENCE.replace("![b where true]", "[b where true]"))
    events = [{"type": kind, "ts": 1000, "u": "x"} for kind in "ab"]
    for hold, counts in ((False, [1, 0]), (True, [0, 1])):
        states = States(program, hold=hold)
        batch = in_order(arrived(program, events))
        assert [len(step(states, batch, 1000)), len(step(states, part(batch, 0, 0), 1001))] == counts
