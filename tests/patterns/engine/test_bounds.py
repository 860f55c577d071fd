"""What one event may find: so many matches, of such a size, and in no more memory than a step may take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samovar.native.kernel import Batch
from samovar.patterns.engine.matcher import (
    NEVER,
    BatchTooLarge,
    BudgetExceeded,
    States,
    StepBudget,
    find_matches,
    step,
)
from tests import oracle
from tests.support.matching import Options, arrived, find, in_order, matches_of, program_of, rules_of

ALL_OF_THREE = """rule: boom
match: |
  sequence by card with maxspan=1h, overlap=any, skip=none
    [a where true] as x
    [a where true] as y
    [a where true] as z
message: "{x.blob}{y.blob}{z.blob}{x.blob}{y.blob}{z.blob}{x.blob}{y.blob}{z.blob}"
"""
MEMORY_BYTES = 1 << 30
SAMOVAR = [sys.executable, "-m", "samovar.service.cli"]


def some(count: int, blob: str = "b", **more: Any) -> list[dict[str, Any]]:
    return [{"type": "a", "ts": number, "card": "c", "blob": blob, **more} for number in range(count)]


# ---------------------------------------------------------------- matches of one event


def test_an_event_makes_at_most_max_matches_and_the_first_in_order_are_kept() -> None:
    events = some(8)
    every = [match["steps"] for match in matches_of(ALL_OF_THREE, events)]
    last = [steps for steps in every if steps["z"] == [7]]
    few = [match["steps"] for match in matches_of(ALL_OF_THREE, events, max_matches=4) if match["steps"]["z"] == [7]]
    assert few == last[:4]
    assert [(steps["x"], steps["y"]) for steps in few] == [([0], [1]), ([0], [2]), ([0], [3]), ([0], [4])]


def test_what_is_beyond_max_matches_is_counted() -> None:
    program, events = program_of(ALL_OF_THREE), some(8)
    states = Options(max_matches=4).states(program)
    found = step(states, in_order(arrived(program, events)), 100)
    assert (len(found), states.counters(0).dropped_matches) == (1 + 3 + 4 * 4, 56 - 20)
    assert states.tallies(0).dropped_matches == states.dropped() == 36


def test_timers_of_one_moment_are_bounded_as_matches_of_one_event_are() -> None:
    text = """rule: waits
match: |
  sequence by card with maxspan=1h, overlap=any, skip=none
    [a where true] as x
    [a where true] as y
    ![b where true] with within=1s
"""
    # All that end with the event at 5 wait until the same moment.
    events = [{"type": "a", "ts": at, "card": "c"} for at in range(6)]
    every = [match["steps"] for match in matches_of(text, events) if match["at"] == 1_005]
    few = [match["steps"] for match in matches_of(text, events, max_matches=2) if match["at"] == 1_005]
    assert len(every) == 5
    assert few == every[:2]


def test_match_tells_how_many_matches_it_dropped(tmp_path: Path) -> None:
    (tmp_path / "boom.yml").write_text(ALL_OF_THREE)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in some(8)))
    command = [*SAMOVAR, "match", str(tmp_path / "boom.yml"), str(tmp_path / "events.jsonl")]
    done = subprocess.run([*command, "--max-matches", "4"], capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 20
    assert "boom: 36 matches dropped, the first of each event are kept; --max-matches allows more\n" in done.stderr


@pytest.mark.parametrize("overlap", ["latest", "all"])
@pytest.mark.parametrize(
    "steps", ["[a where true] as s with runs=3..", "[b where true] [a where true] as s with runs=3.."]
)
def test_a_step_holds_the_events_it_needs_whatever_max_events_is(overlap: str, steps: str) -> None:
    text = f"rule: r\nmatch: |\n  sequence by card with maxspan=1h, overlap={overlap} {steps} [c where true]\n"
    kinds = ["b", "a", "a", "a", "a", "c"]
    events = [{"type": kind, "ts": at, "card": "c"} for at, kind in enumerate(kinds)]
    found = matches_of(text, events, max_events=1)
    assert [(match["steps"]["s"]) for match in found] == [[2, 3, 4]]
    wanted = oracle.run(rules_of(text), events, max_events=1).matches
    assert [(match["start"], match["steps"]) for match in found] == [(each["start"], each["steps"]) for each in wanted]


# ---------------------------------------------------------------- the size of a match


@pytest.mark.parametrize("letter", ["b", "é", "€", "😀"])
@pytest.mark.parametrize("size", [8190, 8191, 8192, 8193, 20_000])
def test_a_message_is_cut_between_two_characters_as_the_oracle_cuts_it(letter: str, size: int) -> None:
    text = ALL_OF_THREE.replace("skip=none", "skip=past_last").replace('message: "', 'message: "x')
    text += "emit: {blob: x.blob, all: values(z.blob)}\n"
    events = some(3, (letter * size).encode()[:size].decode(errors="ignore"))
    found = matches_of(text, events)
    wanted = oracle.run(rules_of(text), events).matches
    assert [(match["message"], match["emit"]) for match in found] == [
        (match["message"], match["emit"]) for match in wanted
    ]
    for cut in (found[0]["message"], found[0]["emit"]["blob"]):
        assert len(cut.encode()) <= 8192
    assert found[0]["message"].endswith("…")
    assert found[0]["emit"]["blob"].endswith("…") == (len(events[0]["blob"].encode()) > 8192)


def test_an_object_beyond_its_bound_becomes_text_that_is_cut() -> None:
    text = "rule: r\nmatch: sequence by card with maxspan=1s [a where true] as x\nemit: {all: x.o}\n"
    small, large = [1] * 10, ["y" * 100] * 20_000
    found = find(program_of(text), [{"type": "a", "ts": 0, "card": "c", "o": o} for o in (small, large)])
    assert found[0]["emit"]["all"] == small
    assert len(found[1]["emit"]["all"].encode()) <= 8192
    assert found[1]["emit"]["all"].startswith('["yyy')


def test_a_match_that_raises_no_alert_has_no_message() -> None:
    program = program_of(ALL_OF_THREE)
    states = States(program)
    states.mute(0, shadow=False, before_at_ms=3, after_start_ms=0)
    found = list(step(states, in_order(arrived(program, some(5))), 10))
    assert {(match["at"], match["start"]) for match in found if "message" in match} == {(3, 0), (4, 0)}
    assert len(found) == 10


@pytest.mark.parametrize("defer", [False, True])
def test_headers_say_what_lines_say(defer: bool) -> None:
    program = program_of(ALL_OF_THREE)
    states, batch = States(program), in_order(arrived(program, some(6)))
    states.mute(0, shadow=False, before_at_ms=3, after_start_ms=None)
    found = find_matches(states, batch, 10, defer_messages=defer)
    headers = found.headers()
    whole = list(found.render())
    fields = ("rule", "version", "id", "start", "at")
    assert [tuple(match[field] for field in fields) for match in whole] == [header[1:6] for header in headers]
    assert [header.row for header in headers] == list(range(20))
    assert ["message" not in match for match in whole] == [header.is_muted for header in headers]
    assert list(found.render([7, 3])) == [whole[7], whole[3]]
    assert not found.render([])


def test_a_message_that_nobody_will_read_takes_no_memory() -> None:
    program = program_of(ALL_OF_THREE)
    batch = in_order(arrived(program, [event | {"blob": str(event["ts"]) * 1024} for event in some(40)]))
    states = States(program)
    states.limit(StepBudget(step_bytes=16 << 20))  # of about 80 MB with all messages
    found = find_matches(states, batch, 1_000, defer_messages=True)
    assert len(found) == 9_880
    assert [len(match["message"].encode()) > 8_000 for match in found.render([0, 9_879])] == [True, True]
    with pytest.raises(BatchTooLarge):
        found.render()


@pytest.mark.address_space
def test_all_matches_of_three_large_events_fit_into_little_memory(tmp_path: Path) -> None:
    """154 events of a key, each with 1 kB that the message quotes nine times: once 4.5 GB, and the process ended."""
    (tmp_path / "boom.yml").write_text(ALL_OF_THREE)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in some(154, "b" * 1024)))
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))"
    main = "from samovar.service.cli.main import main; main()"
    command = [sys.executable, "-c", f"{limited}; {main}", "match", "boom.yml", "events.jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path) as running:
        assert running.stdout is not None
        count = sum(1 for _ in running.stdout)
    assert (running.returncode, count > 100_000) == (0, True)


# ---------------------------------------------------------------- the budget of a step


def test_a_step_over_its_budget_names_the_rule_and_the_key() -> None:
    other = ALL_OF_THREE.replace("rule: boom", "rule: calm").replace("[a where", "[b where")
    program = program_of(other, ALL_OF_THREE)
    for budget, reason in (
        (StepBudget(event_bytes=20_000), "memory"),
        (StepBudget(event_work=200), "work"),
    ):
        states = States(program)
        states.limit(budget)
        with pytest.raises(BudgetExceeded, match=reason) as raised:
            step(states, in_order(arrived(program, some(50))), 1_000)
        assert (raised.value.rule, raised.value.key) == ("boom", ("c",))
        assert raised.value.version == program.rules[1].version
        with pytest.raises(BudgetExceeded):  # its states are of no more use
            step(states, arrived(program, []), 1_000)


def test_the_budget_of_an_event_does_not_depend_on_how_many_come_at_once() -> None:
    program = program_of(ALL_OF_THREE)
    budget = StepBudget(event_bytes=60_000, event_work=NEVER, step_bytes=NEVER)
    batch, failed = in_order(arrived(program, some(60))), []
    for size in (1, 7, 60):
        states = States(program)
        states.limit(budget)
        failed.append(first_that_fails(states, batch, size))
    exact = failed[0]
    assert failed == [exact, exact // 7 * 7, 0]


def first_that_fails(states: States, batch: Batch, size: int) -> int:
    for first in range(0, len(batch), size):
        try:
            step(states, batch, first, (first, min(first + size, len(batch))))
        except BudgetExceeded:
            return first
    raise AssertionError("none did")


def test_a_batch_that_finds_too_much_is_not_the_fault_of_a_rule() -> None:
    program = program_of(ALL_OF_THREE)
    states = States(program)
    states.limit(StepBudget(step_bytes=100_000))
    with pytest.raises(BatchTooLarge):
        step(states, in_order(arrived(program, some(60))), 1_000)


def test_a_mark_is_left_before_an_event_takes_all_that_it_may(tmp_path: Path) -> None:
    program = program_of(ALL_OF_THREE)
    states, mark = States(program), tmp_path / "mark"
    states.limit(StepBudget(event_bytes=100_000, mark=mark))
    batch = in_order(arrived(program, some(60)))
    step(states, batch, 0, (0, 3))
    assert not mark.exists()
    assert not states.take_marked()
    step(states, batch, 0, (3, 10))
    assert mark.read_bytes().startswith(b"boom\n")
    assert states.take_marked()
    assert not states.take_marked()


@pytest.mark.address_space
def test_memory_that_cannot_be_had_is_an_error_of_the_rule(tmp_path: Path) -> None:
    script = f"""
import resource
from samovar.patterns.engine.matcher import BudgetExceeded, States, step
from tests.support.matching import arrived, in_order, program_of
from tests.patterns.engine.test_bounds import ALL_OF_THREE, some
program = program_of(ALL_OF_THREE)
batch = in_order(arrived(program, some(154, "b" * 1024)))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {300 << 20}, used + {300 << 20}))
try:
    step(States(program), batch, 1000)
except BudgetExceeded as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "rule boom, key ['c']: there was no more memory\n", done.stderr
