"""Random rules and events: small vocabularies and frequent ties, so that matches are frequent and corners are met.

`random_case(seed)` is quick and repeats from its seed; `rules_and_events()` is the same generator under hypothesis,
which shrinks what it finds.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any, TypeAlias

from hypothesis import strategies as st

from samovar.patterns.rulefile.rule_file import load_text
from tests.support.random_rule_texts import has_overlap_any, rule_text

Fields: TypeAlias = dict[str, Any]

FIRST_TIME = 1_700_000_000_000
# Events come out of order by no more than this, so none is late where it is given as the slack.
SLACK_MS = 3000
STEPS_MS = (0, 0, 400, 400, 1000, 1000, 1000, 2000, 3000, 5000)
TYPES = "abcdx"
KEYS: list[list[Any]] = [["u0"], ["u0", "u1"], ["u0", "u0", "u1", "u2"], ["u0", "u0", 1, "1"], ["u0", "u0", "u1", None]]
TEXTS = ("p", "p", "q", "pq", "P", "")


def random_case(seed: int) -> tuple[str, list[Fields]]:
    """A rule that loads without an error, and events for it."""
    return make_case(Random(seed))


def rules_and_events() -> st.SearchStrategy[tuple[str, list[Fields]]]:
    return st.randoms(use_true_random=False).map(make_case)


def event_lists() -> st.SearchStrategy[list[Fields]]:
    return st.randoms(use_true_random=False).map(lambda rng: random_events(rng, rng.randint(0, 40), [*TYPES]))


def make_case(rng: Random) -> tuple[str, list[Fields]]:
    text = random_rule(rng)
    # overlap=any finds all combinations, of which few events make many.
    count = rng.randint(8, 18) if has_overlap_any(text) else rng.randint(10, 60)
    return text, random_events(rng, count, [*TYPES, *types_of(text) * 4])


def random_rule(rng: Random) -> str:
    """A few drafts are errors of the language (a last step that is optional, say): those are thrown away."""
    while True:
        text = rule_text(rng)
        if load_text(text).rule is not None:
            return text


def types_of(text: str) -> list[str]:
    """The types that a rule names, as often as it does."""
    return [kind for kind in re.findall(r"(?<!!)\[(\w+) where", text) if kind != "any"]


def random_events(rng: Random, count: int, types: list[str]) -> list[Fields]:
    time = FIRST_TIME
    events = []
    keys = rng.choice(KEYS)
    for _ in range(count):
        time += rng.choice(STEPS_MS)
        events.append({"type": rng.choice(types), "ts": time, **random_fields(rng, keys)})
    return events if rng.random() < 0.5 else disordered(rng, events)


def random_fields(rng: Random, keys: list[Any]) -> Fields:
    event: Fields = {"u": rng.choice(keys), "n": rng.randint(0, 3)}
    if rng.random() < 0.7:
        event["v"] = rng.choice(keys)
    if rng.random() < 0.8:
        event["f"] = rng.choice(TEXTS)
    if rng.random() < 0.1:
        event["n"] = rng.choice((None, 1.5, 2.25, -1, 1.0, True, "1"))
    if rng.random() < 0.03:
        del event[rng.choice(("u", "n"))]
    # A history reads the event before also where it has no value: now and then all are without one.
    if rng.random() < 0.15:
        event[rng.choice("nfv")] = None
    return event


def disordered(rng: Random, events: list[Fields]) -> list[Fields]:
    """Each event arrives up to the slack after its time."""
    arrivals = [event["ts"] + rng.choice((0, 0, 400, 1000, SLACK_MS)) for event in events]
    order = sorted(range(len(events)), key=lambda at: (arrivals[at], rng.random()))
    return [events[at] for at in order]
