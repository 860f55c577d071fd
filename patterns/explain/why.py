"""Why a key did or did not match, in words: what each event did, and how it ended.

    told = explain(follow(program, key, run))

The notes that this reads are those of native/match/trace.cpp and native/match/sequence_trace.cpp, taken by `follow`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from samovar.common.times import duration_text
from samovar.native.kernel import Other
from samovar.patterns.explain.key_trace import BY_LINE, KeyEvent, KeyTrace, Names, listed
from samovar.patterns.syntax import tree
from samovar.patterns.syntax.tree import flatten, step_names, walk
from samovar.patterns.syntax.unparse import unparse

REFUSALS = ("condition", "across", "within", "after", "next", "absence")
SHOWN_REFUSALS = 3

Shows: TypeAlias = Callable[[tree.Expr], bool]  # whether an expression, and what it gives, may be told


def shows_all(_: tree.Expr) -> bool:
    return True


def leaves(expr: tree.Expr, of_match: bool = False) -> list[tree.Expr]:
    """What a condition reads, in the order in which the kernel notes the values.

    Of a match, as in `having`, an expression over the last event alone is read as a whole.
    """
    if of_match and not any(isinstance(part, tree.OfStep | tree.Aggregate) for part in walk(expr)) and leaves(expr):
        return [expr]
    parts: tuple[tree.Expr, ...] = ()
    match expr:
        case tree.Field() | tree.OfStep() | tree.Aggregate() | tree.History():
            return [expr]
        case tree.Binary("==" | "!=", left, right) if tree.Literal(None) in (left, right):
            parts = (left if right == tree.Literal(None) else right,)
        case tree.Binary(_, left, right):
            parts = left, right
        case tree.Unary(_, operand) | tree.TextMatch(_, operand):
            parts = (operand,)
        case tree.In(operand, items):
            parts = operand, *(() if isinstance(items, tree.LongList) else items)
        case tree.Call(_, args):
            parts = args
    return [leaf for part in parts for leaf in leaves(part, of_match)]


def read_text(expr: tree.Expr, read: Sequence[Any], of_match: bool = False, shows: Shows = shows_all) -> str:
    """`amount > 200` (amount is 35). Of a condition that may not be told, only which fields it is on."""
    if not shows(expr):
        paths = dict.fromkeys(part.path for part in walk(expr) if isinstance(part, tree.Field))
        return f"a condition on {', '.join(paths)}"
    told = zip(leaves(expr, of_match), read, strict=False)
    shown = {unparse(part): value_text(value) if shows(part) else "hidden" for part, value in told}
    values = ", ".join(f"{name} is {value}" for name, value in shown.items() if name != unparse(expr))
    return f"`{unparse(expr)}`" + (f" ({values})" if values else "")


def value_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Other):
        value = value.json
    is_round = isinstance(value, float) and value.is_integer() and abs(value) < 1e6
    text = f'"{value}"' if isinstance(value, str) else f"{value:g}" if is_round else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class WhyText:
    """`events`: what each event did, in sentences. `conclusion`: how it ended, in sentences."""

    events: tuple[tuple[KeyEvent, tuple[str, ...]], ...]
    conclusion: tuple[str, ...]


def explain(story: KeyTrace, names: Names = BY_LINE, shows: Shows = shows_all) -> WhyText:
    """The story in sentences, which tell nothing of what an expression gives that `shows` says no to."""
    sequence = isinstance(story.plan.rule.form, tree.SequenceForm)
    teller = _OfSequence(story, names, shows) if sequence else _OfWindow(story, names, shows)
    return WhyText(tuple((event, tuple(teller.event(event))) for event in story.events), tuple(teller.conclusion()))


class _Teller:
    """What both kinds of story have in common."""

    def __init__(self, story: KeyTrace, names: Names, shows: Shows) -> None:
        self.story = story
        self.names = names
        self.shows = shows
        self.plan = story.plan
        self.times = {event.offset: event.time for event in story.events}
        self.by_event: dict[int, list[Mapping[str, Any]]] = {}
        current = -1
        for note in story.notes:
            current = note["event"] if note["what"] == "event" else current
            self.by_event.setdefault(current, []).append(note)

    def nothing_seen(self) -> list[str]:
        parts = zip(self.plan.rule.form.by, self.story.key.items(), strict=True)
        shown = ", ".join(
            f"{name}={value_text(value) if self.shows(part.value) else 'hidden'}" for part, (name, value) in parts
        )
        types = sorted({bracket.type for bracket in self.plan.brackets})
        return [f"No event of type {' or '.join(types)} has the key {shown}."]

    def matched(self) -> list[str]:
        found = [note for note in self.story.notes if note["what"] == "match"]
        if not found:
            return []
        at = [self.names.time(note["at"]) for note in found if not note["suppressed"]]
        hidden = len(found) - len(at)
        times = "once" if len(at) == 1 else f"{len(at)} times"
        told = [f"It matched {times}: at {listed(at, 5)}."] if at else []
        return told + [f"{hidden} more were suppressed (`suppress`)."] * bool(hidden)

    def condition(self, note: Mapping[str, Any]) -> str:
        parts = self.plan.columns if note["what"] == "condition" else self.plan.conditions
        return read_text(parts[note["bracket"]][note["index"]], note["read"], shows=self.shows)

    def conjuncts(self, note: Mapping[str, Any]) -> list[tuple[tree.Expr, Mapping[str, Any]]]:
        having = self.plan.rule.form.having
        if having is None:
            return []
        parts = flatten(having, "and")
        parts = parts if len(parts) == len(note["conjuncts"]) else [having]
        return list(zip(parts, note["conjuncts"], strict=False))

    def having_text(self, note: Mapping[str, Any]) -> str:
        failing = [(part, told["read"]) for part, told in self.conjuncts(note) if not told["holds"]]
        return " and ".join(read_text(part, read, True, self.shows) for part, read in failing)


class _OfSequence(_Teller):
    def __init__(self, story: KeyTrace, names: Names, shows: Shows) -> None:
        super().__init__(story, names, shows)
        form = story.plan.rule.form
        assert isinstance(form, tree.SequenceForm)
        self.form = form
        self.steps = form.taken
        self.step_names = step_names(form)

    def event(self, event: KeyEvent) -> list[str]:
        notes = self.by_event.get(event.offset, [])
        told: list[str] = []
        for note in notes:
            match note["what"]:
                case "until":
                    told.append("ends every partial match (`until`)")
                case "killed":
                    told.append(f"kills the partial match that had {self.at_step(note['step'])}: it must not happen")
                case "having" if self.having_text(note):
                    told.append(f"would complete a match, but `having` refuses it: {self.having_text(note)}")
                case "match":
                    told.append("completes a match" + (" (suppressed)" if note["suppressed"] else ""))
        taken: dict[str, None] = {}
        for note in notes:
            if note["what"] == "partial":
                taken.update((self.step_names[name], None) for name, at in note["events"] if at == event.offset)
        told += [f"taken as {' and '.join(taken)}"] * bool(taken)
        if not told:
            told = list(dict.fromkeys(text for note in notes if (text := self.refusal(note))))
        return told or ["of no use to the rule at this point"]

    def refusal(self, note: Mapping[str, Any]) -> str:
        if note["what"] not in REFUSALS:
            return ""
        # A step's name; of a member or an alternative also which one.
        step, bracket = self.steps[note["target"]], self.plan.brackets[note["bracket"]]
        name = str(bracket.name if step.kind is tree.StepKind.UNORDERED else step.name)
        if step.kind is not tree.StepKind.UNORDERED and len(step.brackets) > 1:
            name += f" [{bracket.type}]"
        since = duration_text(note["since"]) if note["what"] in ("within", "after") else ""
        match note["what"]:
            case "condition" | "across":
                return f"not {name}: {self.condition(note)} does not hold"
            case "within":
                limit = duration_text(step.within_ms or 0)
                return f"too late for {name}: {since} after the step before it, within={limit}"
            case "after":
                limit = duration_text(step.after_ms or 0)
                return f"too early for {name}: {since} after the step before it, after={limit}"
            case "next":
                return f"not {name}: it is not the next event after the step before it (`next`)"
        return f"no start as {name}: what must be absent before it has just happened"

    def at_step(self, number: int) -> str:
        return " and ".join(name for name, _ in self.steps[number].readings)

    def conclusion(self) -> list[str]:
        if not self.story.events:
            return self.nothing_seen()
        if told := self.matched():
            return told
        partials = [(place, note) for place, note in enumerate(self.story.notes) if note["what"] == "partial"]
        if not partials:
            return ["No partial match was begun.", *self.stopped(-1, -1)]
        place, best = max(partials, key=lambda pair: (pair[1]["step"], pair[1]["count"], -pair[0]))
        return [self.reached(best), *self.stopped(place, best["step"]), *self.ended(place, best)]

    def reached(self, best: Mapping[str, Any]) -> str:
        by_name: dict[str, list[int]] = {}
        for name, offset in best["events"]:
            by_name.setdefault(self.step_names[name], []).append(offset)
        had = ", ".join(f"{name} ({self.names.events(offsets)})" for name, offsets in by_name.items())
        waited = self.waited_for(best)
        return f"The furthest partial match had {had}{waited}."

    def waited_for(self, best: Mapping[str, Any]) -> str:
        if best["waits"]:
            return " and waited for its time to pass"
        place = best["step"]
        step = self.steps[place]
        if step.kind is tree.StepKind.UNORDERED:
            taken = {self.step_names[name] for name, _ in best["events"]}
            open_members = [str(bracket.name) for bracket in step.brackets if bracket.name not in taken]
            if open_members:
                return f" and waited for {' and '.join(open_members)}"
        elif best["count"] < step.runs_min:
            return f", {best['count']} of at least {step.runs_min} events of {step.name}"
        following = []
        for number in range(place + 1, len(self.steps)):
            following.append(self.at_step(number))
            if not self.steps[number].optional:
                break
        return f" and waited for {' or '.join(following)}" if following else ""

    def stopped(self, place: int, step: int) -> list[str]:
        """What later events lacked to take that partial further, the latest last."""
        told: dict[str, None] = {}
        for note in self.story.notes[place + 1 :]:
            if note["what"] in REFUSALS and note["step"] == step and (text := self.refusal(note)):
                told[f"{self.names.event(note['event'])} was {text}"] = None
        texts = list(told)
        shown = texts[-SHOWN_REFUSALS:] if len(texts) > SHOWN_REFUSALS else texts
        more = [f"{len(texts) - len(shown)} earlier events did not fit either."] * (len(texts) > len(shown))
        if not texts and step >= 0:
            # Unless something else says how the partial ended.
            ended = any(note["what"] in ("killed", "until", "having") for note in self.story.notes[place + 1 :])
            return [] if ended else ["No later event was of the type that it waited for."]
        return more + [_sentence(text) for text in shown]

    def ended(self, place: int, best: Mapping[str, Any]) -> list[str]:
        for note in self.story.notes[place + 1 :]:
            if note["what"] == "killed" and note["step"] == best["step"]:
                bracket = note["bracket"]
                what = f"![{self.plan.brackets[bracket].type} ...]" if bracket >= 0 else "what must not happen"
                return [_sentence(f"{self.names.event(note['event'])} killed it: {what}")]
            if note["what"] == "until":
                return [_sentence(f"{self.names.event(note['event'])} ended it (`until`)")]
            if note["what"] == "having" and (text := self.having_text(note)):
                return [f"It was complete, but `having` refused it: {text}."]
        start = min((self.times[offset] for _, offset in best["events"] if offset in self.times), default=None)
        if start is None or best["waits"]:
            return ["The input ended before its time had passed."] if best["waits"] else []
        over = start + self.form.maxspan_ms
        span = duration_text(self.form.maxspan_ms)
        if self.story.end_ms is not None and self.story.end_ms <= over:
            return [f"The input ended before its span of {span} was over."]
        return [f"Its span of {span} was over at {self.names.time(over)}."]


class _OfWindow(_Teller):
    def event(self, event: KeyEvent) -> list[str]:
        notes = self.by_event.get(event.offset, [])
        windows = [note for note in notes if note["what"] == "window"]
        told = [self.state(note) for note in windows]
        for note in notes:
            if note["what"] == "condition" and not windows:
                bracket = self.plan.brackets[note["bracket"]]
                name = bracket.name or f"in [{bracket.type} ...]"
                told.append(f"not {name}: {self.condition(note)} does not hold")
        told += ["fires"] * any(note["what"] == "match" and not note["suppressed"] for note in notes)
        return told or ["of no use to the rule"]

    def state(self, note: Mapping[str, Any]) -> str:
        form = self.plan.rule.form
        where = "in the session" if isinstance(form, tree.SessionForm) else "in the window"
        if not isinstance(form, tree.SessionForm | tree.AggregateForm):
            where += f" from {self.names.time(note['start'])}"
        values: dict[str, str] = {}
        for part, told in self.conjuncts(note):
            read = zip(leaves(part, of_match=True), told["read"], strict=False)
            values.update((unparse(leaf), value_text(value)) for leaf, value in read if self.shows(leaf))
        text = f"{note['count']} {where}" + "".join(f", {name} is {value}" for name, value in values.items())
        if isinstance(form, tree.AggregateForm):
            held = all(told["holds"] for _, told in self.conjuncts(note))
            text += "; `having` still holds, fired already" if held and not note["armed"] else ""
        return text

    def conclusion(self) -> list[str]:
        if not self.story.events:
            return self.nothing_seen()
        if told := self.matched():
            return told
        aggregate = isinstance(self.plan.rule.form, tree.AggregateForm)
        tested = [note for note in self.story.notes if note["what"] == ("window" if aggregate else "closed")]
        if not tested:
            opened = any(note["what"] == "window" for note in self.story.notes)
            return ["The input ended before event time passed its end."] if opened else ["No event entered it."]
        best = max(tested, key=self.nearness)
        where = self.names.event(best["event"])
        return [f"`having` was nearest at {where}: {self.having_text(best)} does not hold."]

    def nearness(self, note: Mapping[str, Any]) -> tuple[float, float]:
        """How many parts of `having` hold, and how little the others lack."""
        parts = self.conjuncts(note)
        failing = [(part, told["read"]) for part, told in parts if not told["holds"]]
        lacking = sum(_distance(part, read) if self.shows(part) else float("inf") for part, read in failing)
        return sum(told["holds"] for _, told in parts), -lacking


def _distance(expr: tree.Expr, read: Sequence[Any]) -> float:
    match expr:
        case tree.Binary("<" | "<=" | ">" | ">=" | "==", _, tree.Literal(int() | float() as limit)) if len(read) == 1:
            value = read[0]
            if isinstance(value, int | float) and not isinstance(value, bool):
                return abs(float(value) - float(limit))
    return float("inf")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
