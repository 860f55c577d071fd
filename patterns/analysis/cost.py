"""What a rule's state costs: bytes per key, partial matches, and how long a silent key is held.

The sizes follow the packed rows of native/match/rows.cpp, sequence_pack.cpp and pane.h, field by field, each with the
most bytes that it takes for times of this century, up to 128 streams of any number of partitions, and offsets below
2^41. They are therefore an upper bound, as long as texts that the rule reads, and keys, have at most TEXT_BYTES bytes:

    state of a key = header + partial matches * (run + events in it * (place + values read of it))
                   + events in a bag or window * (place + brackets + values read of it) + a row key every 128 of them
                   + for each history function: events in its span * (place + value)

`typical` is one match under way that lacks its last event; where events are counted (an aggregate, a session, a window)
as many as `having` asks for, if that can be seen, and else ten. `worst` is with `max_events` and `max_partials`
reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

from samovar.patterns.analysis.satisfiability import Scope, satisfiable
from samovar.patterns.engine.matcher import MAX_EVENTS, MAX_PARTIALS
from samovar.patterns.semantics.event_types import brackets_of
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import children, flatten, rewrite, walk

TEXT_BYTES = 32  # of a text that is read, or is a key
VALUE_BYTES = 2 + TEXT_BYTES  # a tag, a length, the text; numbers take less
TIME_BYTES = 6
PLACE_BYTES = TIME_BYTES + 6 + 6  # time, stream and partition, offset
NUMBER_BYTES = 5  # a count that goes on for the life of a key
LISTED_EVENTS = 1_000  # coordinates that a session or window keeps for its match
LISTED_VALUES = 100  # values that `values(x)` keeps
HISTORY_NAME = 24  # `history/` and sixteen digits
CHUNK_EVENTS = 128  # events in one row
COMMON_EVENTS = 10  # where the rule does not say how many there are
MAX_OVERFLOW = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Cost:
    """`partials` are partial matches at worst; None of `held_ms` means that a key is held for ever.

    `overflow_events`: how many events of one key within the rule's span, all fitting every step, bring more partial
    matches than max_partials; None where that cannot be.
    """

    typical_bytes: int
    worst_bytes: int
    partials: int
    held_ms: int | None
    overflow_events: int | None


def cost(rule: tree.Rule, *, max_events: int = MAX_EVENTS, max_partials: int = MAX_PARTIALS) -> Cost:
    """What one key of a rule costs, by the rule alone."""
    # Equal history functions share their state.
    found = [item for condition in _conditions(rule) for item in walk(condition) if isinstance(item, tree.History)]
    histories = list(dict.fromkeys(found))
    past = sum(_history_bytes(rule, each, COMMON_EVENTS) for each in histories)
    past_worst = sum(_history_bytes(rule, each, max_events) for each in histories)
    form = rule.form
    name = len(rule.id) + 17  # the version is part of a store's name
    row = _row_bytes(name, rule) + 2 + TIME_BYTES + 4
    if isinstance(form, tree.SequenceForm):
        typical, largest, partials = _sequence(rule, form, max_events, max_partials)
    elif isinstance(form, tree.AggregateForm):
        width = len({item.value for item in _aggregates(rule) if item.value is not None}) + len(_last_event(rule))
        events = min(_asked_for(form.having), max_events)
        typical = _log_bytes(width, events, name, rule) + 12
        largest, partials = _log_bytes(width, max_events, name, rule) + 12, 1
    else:
        typical, largest, partials = _panes(rule, form, max_events)
    worst = row + largest + past_worst
    overflow = _overflow(form, max_partials) if isinstance(form, tree.SequenceForm) else None
    return Cost(
        typical_bytes=min(row + typical + past, worst),
        worst_bytes=worst,
        partials=partials,
        held_ms=_retention_ms(rule, histories),
        overflow_events=overflow,
    )


def _row_bytes(name: int, rule: tree.Rule) -> int:
    """A row's key: the store's name, the key's values, a mark; and the lengths of both."""
    values = max(1, len(rule.form.by)) * (5 + TEXT_BYTES)
    return 2 + name + 2 + values + 1


def _log_bytes(width: int, events: int, name: int, rule: tree.Rule) -> int:
    """Events in chunks: place, number, brackets and values of each; a row key, its number and a head every chunk."""
    each = PLACE_BYTES + NUMBER_BYTES + 10 + width * VALUE_BYTES
    # The first and the last chunk may be partly filled.
    chunks = events // CHUNK_EVENTS + 2
    head = 8 + 1 + NUMBER_BYTES + 2 + _row_bytes(name, rule)
    return 2 * NUMBER_BYTES + events * each + chunks * head


def _history_bytes(rule: tree.Rule, history: tree.History, events: int) -> int:
    """A history function's own rows; for brackets of `any` type the type is part of their key."""
    events = 1 if history.function == "prev" else events  # it reads one event, and holds no other
    name = HISTORY_NAME + 5 + TEXT_BYTES
    return _row_bytes(name, rule) + 2 + TIME_BYTES + 4 + _log_bytes(1, events, name, rule)


def _conditions(rule: tree.Rule) -> Iterator[tree.Expr]:
    for bracket in brackets_of(rule):
        yield bracket.condition
        yield from (key.value for key in bracket.by or ())


def _sequence(rule: tree.Rule, form: tree.SequenceForm, max_events: int, max_partials: int) -> tuple[int, int, int]:
    """The typical and the largest bytes, and the partial matches at worst."""
    taken, captures = form.taken, _captures(rule, form)
    bag = form.overlap is tree.Overlap.LATEST and taken[0].repeated and taken[0].kind is tree.StepKind.TAKE
    firsts = sum(len(step.brackets) for step in form.steps if step.for_ms is not None)
    head = NUMBER_BYTES + firsts * 10 + 2 * NUMBER_BYTES + 3
    partials = _positions(form, taken, bag) if form.overlap is tree.Overlap.LATEST else max_partials
    in_runs = taken[1:] if bag else taken
    run = 30 + 2 * PLACE_BYTES + 3 * NUMBER_BYTES
    copies = 2 if form.overlap is tree.Overlap.ALL and any(step.optional and step.repeated for step in taken) else 1
    large = run
    for step in in_runs:
        most = max_events if step.runs_max is None else max(step.runs_min, min(step.runs_max, max_events))
        large += _events_bytes(step, captures, most)
    # A match that lacks its last event. But for `all`, one partial match is left at every position passed.
    sizes: list[int] = []
    held = 0
    for step in in_runs:
        group = step.kind is tree.StepKind.UNORDERED
        for _ in range(1 if group else step.runs_min):
            held += _events_bytes(step, captures, 1)
            sizes += [held] * (min(2 ** len(step.brackets) - 1, MAX_OVERFLOW) if group else 1)
    passed = sizes if form.steps[-1].kind is tree.StepKind.ABSENT else sizes[:-1]
    counted = passed[-1:] if form.overlap is tree.Overlap.ALL else passed
    small = sum(run + size for size in counted) if partials else 0
    name = len(rule.id) + 17
    width = captures.get(str(taken[0].name), 0)
    bag_least = _log_bytes(width, taken[0].runs_min, name, rule) if bag else 0
    bag_most = _log_bytes(width, max_events, name, rule) if bag else 0
    worst = head + partials * copies * large + bag_most
    return min(head + small + bag_least, worst), worst, partials + bag


def _events_bytes(step: tree.Step, captures: dict[str, int], events: int) -> int:
    if step.kind is tree.StepKind.UNORDERED:
        return sum(3 + PLACE_BYTES + captures.get(str(member.name), 0) * VALUE_BYTES for member in step.brackets)
    return events * (3 + PLACE_BYTES + captures.get(str(step.name), 0) * VALUE_BYTES)


def _positions(form: tree.SequenceForm, taken: list[tree.Step], bag: bool) -> int:
    """Under `latest` one partial match a position: step and count up to the N of runs=N.., or members of a group."""
    waits = form.steps[-1].kind is tree.StepKind.ABSENT
    total = 0
    for step in taken[1:] if bag else taken:
        group = step.kind is tree.StepKind.UNORDERED
        total += min(2 ** len(step.brackets) - 1, MAX_OVERFLOW) if group else step.runs_min
    return max(total - (not waits), 1 if waits else 0)


def _overflow(form: tree.SequenceForm, max_partials: int) -> int | None:
    """The fewest events that make too many partial matches: under `all` one each, under `any` all combinations."""
    if form.overlap is tree.Overlap.LATEST:
        return None
    taken = form.taken
    sizes = [len(step.brackets) if step.kind is tree.StepKind.UNORDERED else step.runs_min for step in taken]
    waits = form.steps[-1].kind is tree.StepKind.ABSENT
    if sum(sizes) <= 1 and not waits:
        return None  # one event is the whole match
    if form.overlap is tree.Overlap.ALL:
        return max_partials + 1
    if any(step.runs_max is None for step in taken):
        return max_partials.bit_length()
    longest = sum(sizes) - (not waits) + sum((step.runs_max or 1) - step.runs_min for step in taken)
    events = 1
    while sum(comb(events, length) for length in range(1, longest + 1)) <= max_partials and events <= max_partials:
        events += 1
    return events


def _panes(rule: tree.Rule, form: tree.SessionForm | tree.WindowForm, max_events: int) -> tuple[int, int, int]:
    """The typical and the largest bytes, and how many are open at worst."""
    aggregates = list(dict.fromkeys(_aggregates(rule)))
    fixed = 2 * TIME_BYTES + 2 * NUMBER_BYTES + PLACE_BYTES + 6 + len(_last_event(rule)) * VALUE_BYTES
    running = 2 * NUMBER_BYTES + 20 + 16 + 4 + 16 + 3 * VALUE_BYTES + 3
    kept_values = {"distinct": max_events, "values": LISTED_VALUES}

    def size(events: int) -> int:
        sets = sum(min(events, kept_values.get(item.function, 0)) * VALUE_BYTES for item in aggregates)
        return fixed + min(events, LISTED_EVENTS) * PLACE_BYTES + len(aggregates) * running + sets

    panes = 1 if isinstance(form, tree.SessionForm) else -(-form.size_ms // form.every_ms)
    asked = COMMON_EVENTS if form.having is None else _asked_for(form.having)
    # A window of which the end has come stays open until a later event or the clock passes it.
    open_panes = panes if isinstance(form, tree.SessionForm) else panes + 1
    largest = size(max(max_events, LISTED_EVENTS))
    return size(asked) * panes + 3, open_panes * (largest + TIME_BYTES) + 3, open_panes


def _asked_for(having: tree.Expr) -> int:
    """How many events must come before `having` can hold: `count() >= 5`, `distinct(card) > 7`."""
    asked = 0
    for part in flatten(having, "and"):
        match part:
            case tree.Binary(
                ">" | ">=" | "==", tree.Aggregate("count" | "distinct"), tree.Literal(int() | float() as number)
            ):
                asked = max(asked, int(number) + (part.op == ">"))
    return asked or COMMON_EVENTS


def _output_expressions(rule: tree.Rule) -> list[tree.Expr]:
    return [*rule.shown, *([] if rule.form.having is None else [rule.form.having])]


def _captures(rule: tree.Rule, form: tree.SequenceForm) -> dict[str, int]:
    """How many values are kept of an event of each step: what is read of the step, and of the last event."""
    read: dict[str, set[tree.Expr]] = {}
    for expr in (*_conditions(rule), *_output_expressions(rule)):
        for item in walk(expr):
            if isinstance(item, tree.OfStep):
                read.setdefault(item.step, set()).add(item.value)
            elif isinstance(item, tree.Aggregate) and item.target is not None and item.value is not None:
                read.setdefault(item.target, set()).add(item.value)
    last = len(_last_event(rule))
    names = {str(step.name) for step in form.steps} | {str(bracket.name) for bracket in brackets_of(rule)}
    return {name: len(read.get(name, ())) + last for name in names}


def _last_event(rule: tree.Rule) -> set[tree.Expr]:
    """What `having`, `emit` and `message` read of the last event: expressions over plain fields."""
    return {item for expr in _output_expressions(rule) for item in _of_event(expr)}


def _of_event(expr: tree.Expr) -> Iterator[tree.Expr]:
    inside = list(walk(expr))
    if not any(isinstance(item, tree.OfStep | tree.Aggregate) for item in inside):
        if any(isinstance(item, tree.Field) for item in inside):
            yield expr
    elif not isinstance(expr, tree.OfStep | tree.Aggregate):
        for child in children(expr):
            yield from _of_event(child)


def _aggregates(rule: tree.Rule) -> Iterator[tree.Aggregate]:
    return (item for expr in _output_expressions(rule) for item in walk(expr) if isinstance(item, tree.Aggregate))


def _retention_ms(rule: tree.Rule, histories: list[tree.History]) -> int | None:
    """How long after a key's last event its state is gone, at the latest."""
    form, quiet = rule.form, rule.suppress_ms or 0
    if isinstance(form, tree.SequenceForm):
        waits = form.steps[-1].kind is tree.StepKind.ABSENT
        # A match by timer comes up to maxspan after the last event, and is then remembered for suppress.
        own = form.maxspan_ms + quiet if waits else max(form.maxspan_ms, quiet)
        own = max(own, *(step.for_ms or 0 for step in form.steps))
    elif isinstance(form, tree.AggregateForm):

        def of_nothing(expr: tree.Expr) -> tree.Expr | None:
            if not isinstance(expr, tree.Aggregate):
                return None
            return tree.Literal(0 if expr.function in ("count", "sum", "distinct") else None)

        # Where `having` can hold over no event at all, the key must be known for ever.
        if satisfiable([rewrite(form.having, of_nothing)], Scope()):
            return None
        own = max(form.over_ms, quiet)
    else:
        own = (form.gap_ms if isinstance(form, tree.SessionForm) else form.size_ms) + quiet
    return max([own, *(history.span_ms for history in histories)])
