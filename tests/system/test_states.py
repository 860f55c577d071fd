"""States as rows: small writes for large keys, nothing lost on the way, and damage that is told and never a crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from samovar.patterns.engine.compile import Program
from samovar.patterns.engine.matcher import END_OF_TIME, StateError, States, step
from tests.support.matching import Options, Rows, Store, arrived, batch_of_arrays, in_order, loaded, part, program_of
from tests.support.random_rules import FIRST_TIME, random_events, random_rule
from tests.support.tunables import tiny

MEGABYTE = 1 << 20
EVENTS = 10_000
DAMAGES = 40  # to the rows of one case
CASES = 60

BAG = """
rule: bag
match: |
  sequence by card with maxspan=7d
    [buy where amount < 100] as probe with runs=3..
    [buy where amount > 900] as big
emit: {spent: sum(probe.amount), places: distinct(probe.place)}
"""
AGGREGATE = """
rule: aggregate
match: |
  aggregate by card over 7d
    [buy where true] as b
    having sum(amount) > 100000000 and distinct(place) > 5
emit: {least: min(amount)}
"""
HISTORY = """
rule: history
match: |
  sequence by card with maxspan=1m
    [buy where amount > 5 * avg(amount, 7d) and not seen(place, 7d)]
"""
MIDDLE = """
rule: middle
match: |
  sequence by card with maxspan=7d
    [new where true] as a
    [buy where true] as b with runs=2..
    [end where true] as c
emit: {spent: sum(b.amount), places: distinct(b.place)}
"""
SESSION = """
rule: session
match: |
  session by card with gap=1d
    [buy where true]
emit: {places: distinct(place), spent: sum(amount)}
"""
LARGE = {"bag": BAG, "aggregate": AGGREGATE, "history": HISTORY, "session": SESSION}


def large_key(program: Program, count: int, text: int = 8) -> States:
    """One key with many events, a second apart, whose text has so many bytes. None of it was ever written."""
    states = States(program)
    numbers = np.arange(count)
    types = np.full(count, b"buy")
    types[0] = b"new"
    batch = batch_of_arrays(
        program,
        FIRST_TIME + numbers * 1000,
        types,
        {
            "card": np.full(count, b"c1"),
            "amount": numbers % 50,
            "place": np.array([f"{n % 5000:0{text}d}".encode() for n in range(count)]),
        },
    )
    step(states, batch, FIRST_TIME + count * 1000)
    return states


def one_more(program: Program, states: States, count: int) -> None:
    event = {"type": "buy", "ts": FIRST_TIME + count * 1000, "card": "c1", "amount": 7, "place": "x"}
    batch = batch_of_arrays(
        program,
        np.array([event["ts"]]),
        np.array([b"buy"]),
        {"card": np.array([b"c1"]), "amount": np.array([7]), "place": np.array([b"x"])},
        first=count,
    )
    step(states, batch, FIRST_TIME + count * 1000)


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_one_more_event_rewrites_a_header_and_a_chunk(text: str) -> None:
    program = program_of(text)
    states = large_key(program, EVENTS)
    first = dict(states.changed_rows())
    assert all(len(value or b"") < MEGABYTE for value in first.values())
    one_more(program, states, EVENTS)
    changes = states.changed_rows()
    written = [(key, value) for key, value in changes if value is not None]
    stores = {key[1 + key[0] :][: 1 + key[1 + key[0]]] for key in first}  # of a rule and of each history function
    assert len(written) <= 2 * len(stores)
    assert len(changes) <= 3 * len(stores)
    size = sum(len(value) for _, value in written)
    # A session holds no events, but what `distinct` has seen and the newest coordinates: all of that is its header.
    assert size < (100_000 if text is SESSION else 8_000) * len(stores)


@pytest.mark.parametrize("text", [*LARGE.values(), MIDDLE], ids=[*LARGE, "middle"])
def test_no_row_is_a_megabyte(text: str) -> None:
    """With a few hundred bytes of text in each event."""
    program = program_of(text)
    states = large_key(program, EVENTS, 300)
    assert max(map(len, states.rows().values())) < MEGABYTE


def test_nothing_changed_writes_nothing() -> None:
    program = program_of(*LARGE.values())
    states = large_key(program, 1000)
    assert states.changed_rows()
    assert states.changed_rows() == []
    other = loaded(program, states.rows())
    assert other.changed_rows() == []


# ---------------------------------------------------------------- what is written is what is held


def test_rows_do_not_disturb_what_is_noted_as_changed() -> None:
    program = program_of(*LARGE.values(), MIDDLE)
    states, store = large_key(program, 300), Store()
    states.rows()
    states.digest(FIRST_TIME)
    store.write(states.changed_rows())
    assert store.rows == states.rows()


def test_changed_rows_from_the_beginning_are_all_rows() -> None:
    """A key that grows over many chunks, whose oldest events go, that is emptied and comes again."""
    program = program_of(*(text.replace("7d", "10m") for text in (*LARGE.values(), MIDDLE)))
    states, store = States(program), Store()
    rng = Random(7)
    time = FIRST_TIME
    for count in range(400):
        time += rng.choice((0, 1000, 1000, 1000, 700_000 if count % 100 == 99 else 1000))
        kinds = [rng.choice(("buy", "buy", "buy", "new", "end")) for _ in range(rng.choice((1, 5, 30)))]
        events = [
            {"type": kind, "ts": time, "card": "c1", "amount": rng.choice((1, 50, 901)), "place": "p"} for kind in kinds
        ]
        step(states, in_order(arrived(program, events)), time)
        store.write(states.changed_rows())
        if rng.random() < 0.2:
            other = loaded(program, store.rows)
            assert other.digest(time) == states.digest(time)
            assert other.rows().keys() == states.rows().keys() == store.rows.keys()
            states = other
    step(states, in_order(arrived(program, [])), END_OF_TIME)
    store.write(states.changed_rows())
    assert (store.rows, states.rows(), states.live()) == ({}, {}, 0)


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_were_cut_otherwise_are_written_again(seed: int) -> None:
    """Chunks and headers of any size, by one engine after the other: nothing is lost, and nothing is left behind."""
    program = program_of(*(text.replace("7d", "10m") for text in (*LARGE.values(), MIDDLE)))
    rng = Random(seed)
    plain, states, store = States(program), States(program, tunables=tiny(rng)), Store()
    time = FIRST_TIME
    for count in range(60):
        time += rng.choice((0, 1000, 1000, 1000, 700_000 if count % 20 == 19 else 1000))
        kinds = [rng.choice(("buy", "buy", "buy", "new", "end")) for _ in range(rng.choice((1, 5, 30, 150)))]
        events = [
            {"type": kind, "ts": time, "card": "c1", "amount": rng.choice((1, 50, 901)), "place": "p"} for kind in kinds
        ]
        found = [list(step(each, in_order(arrived(program, events)), time)) for each in (plain, states)]
        assert found[0] == found[1]
        store.write(states.changed_rows())
        if rng.random() < 0.5:
            states = loaded(program, store.rows, Options(tunables=tiny(rng)))
            assert states.digest(time) == plain.digest(time)
    step(states, in_order(arrived(program, [])), END_OF_TIME)
    store.write(states.changed_rows())
    assert (store.rows, states.live()) == ({}, 0)


def test_a_digest_changes_nothing() -> None:
    """Also one of a later time, which sees less: the state goes on as if nobody had asked."""
    text = "rule: r\nmatch: |\n  sequence by card with maxspan=1h\n    [buy where true]\n    ![close where true]\n"
    program = program_of(text)
    batch = in_order(arrived(program, [{"type": "buy", "ts": FIRST_TIME, "card": "c1"}]))
    states = States(program)
    step(states, batch, FIRST_TIME)
    before = states.rows()
    states.digest(FIRST_TIME)
    assert states.rows() == before
    states.digest(FIRST_TIME + 10_000_000)
    assert states.rows() == before
    assert len(step(states, part(batch, 0, 0), END_OF_TIME)) == 1


def test_rows_of_other_rules_are_passed_over() -> None:
    rows = large_key(program_of(BAG), 300).rows()
    states = loaded(program_of(AGGREGATE), rows)
    assert states.live() == 0


def test_loading_again_replaces_a_key() -> None:
    program = program_of(BAG)
    rows = large_key(program, 300).rows()
    states = loaded(program, rows)
    states.load(rows)
    assert states.live() == 1
    assert states.rows() == rows


# ---------------------------------------------------------------- damage


def header_of(rows: Rows) -> bytes:
    return min(rows)


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_a_newer_format_is_refused(text: str) -> None:
    program = program_of(text)
    rows = large_key(program, 300).rows()
    for key in rows:
        with pytest.raises(StateError, match="newer version"):
            loaded(program, {**rows, key: b"\x02" + rows[key][1:]})


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_rows_that_were_cut_short_are_refused(text: str) -> None:
    program = program_of(text)
    rows = large_key(program, 300).rows()
    for key, value in rows.items():
        for size in {0, 1, 2, len(value) // 2, len(value) - 1}:
            with pytest.raises(StateError):
                loaded(program, {**rows, key: value[:size]})


def test_a_missing_chunk_is_refused() -> None:
    program = program_of(BAG)
    rows = large_key(program, 300).rows()
    for key in rows.keys() - {header_of(rows)}:
        with pytest.raises(StateError):
            loaded(program, {other: value for other, value in rows.items() if other != key})


def damaged(rng: Random, rows: Rows) -> Rows:
    """Bits flipped, bytes cut, put in or repeated, in a value or in a key; or a row gone."""
    found = dict(rows)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if not found:
            break
        key = rng.choice(sorted(found))
        value = found.pop(key)
        if rng.random() < 0.2:
            key = harmed(rng, key)
        elif rng.random() < 0.95:
            value = harmed(rng, value)
        else:
            continue
        found[key] = value
    return found


def harmed(rng: Random, data: bytes) -> bytes:
    # The first byte is the format, and the first of a key the length of its name: those are seldom worth a try.
    place = rng.randrange(min(1, len(data) - 1), len(data)) if data else 0
    match rng.choice(("bit", "bit", "byte", "cut", "in", "huge", "twice")):
        case "bit":
            return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case "byte":
            return data[:place] + rng.randbytes(1) + data[place + 1 :]
        case "cut":
            return data[:place]
        case "in":
            return data[:place] + rng.randbytes(rng.randint(1, 9)) + data[place:]
        case "huge":
            return data[:place] + b"\xff" * rng.randint(1, 9) + b"\x01" + data[place + 1 :]
    return data[:place] + data[place:] + data[place:]


def use_damaged(seed: int) -> None:
    """Rows of a random rule, damaged in many ways: what can be loaded is used to the end. Repeats from its seed."""
    rng = Random(seed)
    program = program_of(*(random_rule(rng).replace("rule: random", f"rule: random-{n}") for n in range(2)))
    options = Options(max_events=rng.choice((3, 10_000)), max_partials=rng.choice((2, 1000)))
    batch = in_order(arrived(program, random_events(rng, 60, [*"abcx"])))
    states = options.states(program)
    step(states, part(batch, 0, 30), int(batch.time[29]))
    rows = states.rows()
    for _ in range(DAMAGES):
        try:
            broken = loaded(program, damaged(rng, rows), options)
        except StateError:
            continue
        broken.digest(int(batch.time[29]))
        broken.rows()
        step(broken, part(batch, 30, 60), int(batch.time[59]))
        broken.changed_rows()
        loaded(program, broken.rows(), options)
        step(broken, part(batch, 0, 0), END_OF_TIME)


# Seeds that one process tries: a crash takes the process with it, and the others go on.
CHILDREN = [[*range(first, first + 20)] for first in range(0, CASES, 20)]


@pytest.mark.parametrize("seeds", CHILDREN, ids=lambda seeds: f"{seeds[0]}..{seeds[-1]}")
def test_damaged_rows_are_refused_or_harmless(seeds: list[int], root: Path) -> None:
    program = "import sys, json\nfrom tests.system.test_states import use_damaged\n"
    program += "for seed in json.loads(sys.argv[1]):\n    print(seed, flush=True)\n    use_damaged(seed)\n"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(seeds)], cwd=root, capture_output=True, text=True, check=False
    )
    last = done.stdout.split()[-1:] or ["none"]
    assert done.returncode == 0, f"use_damaged({last[0]}): exit {done.returncode}\n{done.stderr[-2000:]}"
