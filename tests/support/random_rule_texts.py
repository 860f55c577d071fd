"""Texts of random rules, in all forms and with everything that a sequence may hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

SPANS = ("400ms", "1s", "2s", "3s", "5s")
MAXSPANS = ("0ms", "1s", "5s", "5s", "12s", "12s", "12s", "30s", "30s", "1m")


def rule_text(rng: Random) -> str:
    form = rng.choices((sequence_rule, aggregate_rule, session_rule, window_rule), (70, 12, 10, 8))[0]
    draft = form(rng)
    lines = [
        "rule: random",
        "title: random",
        "severity: low",
        "match: |",
        *(f"  {line.rstrip()}" for line in draft.lines),
    ]
    if draft.emit:
        lines += ["emit:", *(f"  {name}: '{expr}'" for name, expr in draft.emit.items())]
    if draft.message:
        lines.append(f"message: '{draft.message}'")
    if rng.random() < 0.15:
        lines.append(f"suppress: {rng.choice(SPANS)}")
    text = "\n".join(lines)
    if "$" in text:
        lines += ["params: {least: 1}", "lists:", "  some: [p, q]"]
        lines += [f"  mixed: {random_list(rng)}", "  mixed_texts: ['p?', 'P', 'q*', p]"]
    if "w0" in text:
        lines.append("let: {w0: 'n + 1'}")
    return "\n".join(lines) + "\n"


def random_list(rng: Random) -> str:
    """Values of several types, some twice, among them those that events have."""
    values = rng.choices(("0", "1.0", "2", "2.25", "-1", "3.0", "'1'", "p", "PQ", "'P'", "''"), k=rng.randint(1, 6))
    return f"[{', '.join([*values, *(f'x{n}' for n in range(rng.choice((0, 3, 40))))])}]"


def has_overlap_any(text: str) -> bool:
    return "overlap=any" in text


@dataclass
class Draft:
    """The lines of `match`, and what stands next to it."""

    lines: list[str]
    emit: dict[str, str] = field(default_factory=dict)
    message: str = ""


# ---------------------------------------------------------------- conditions of one event


def condition(rng: Random, chance: float = 0.4) -> str:
    """`true` more often than not, so that matches are frequent."""
    if rng.random() > chance:
        return "true"
    return rng.choice(PLAIN) if rng.random() < 0.75 else history(rng)


PLAIN = (
    "n >= 1",
    "n > 0",
    "n < 3",
    "n != 2",
    "n == 1 or n == 2",
    "not (n == 0)",
    "n in (0, 1, 2)",
    "n not in (3)",
    "n == null or n > 0",
    "n != null",
    'f == "p"',
    'f != "q"',
    'f like "p*"',
    'f regex "^[pq]"',
    "f in $some",
    "f not in $some",
    "f == null or f in $some",
    "f in~ $mixed",
    "n in $mixed",
    "n not in $mixed or f in $mixed",
    "f like $mixed_texts",
    'f in~ ("P", "")',
    'n in (1, 2.25, "p", true, null)',
    "n in (0, n, 2)",
    '"p" in (f, v)',
    "n > $least",
    "w0 > 1",
    "n + 1 > n * 1",
    "n / 2 < 1.5",
    "n % 2 == 0 or n % 2 == 1",
    "length(f) == 1",
    "lower(f) == f",
    'starts_with(f, "p")',
    "coalesce(n, 1) > 0",
    "round(n) <= 2",
    "abs(n - 2) < 2",
    "hour(@time) == 22",
    '@type != "x"',
)


def history(rng: Random) -> str:
    span = rng.choice(("1s", "3s", "5s", "12s", "1m"))
    where = rng.choice(("", "", " where n > 0", ' where f == "p"', " where n != 2", " where n == null or n > 1"))
    return rng.choice(
        (
            f"not seen(f, {span}{where})",
            f"seen(f, {span}{where})",
            f"not seen(n, {span}{where})",
            f"count({span}{where}) < 3",
            f"count({span}{where}) > 0",
            f"n >= avg(n, {span}{where})",
            f"sum(n, {span}{where}) < 5",
            f"max(n, {span}{where}) >= n",
            f"min(n, {span}{where}) <= n",
            f"distinct(f, {span}{where}) <= 2",
            f"coalesce(prev(n, {span}{where}), 0) <= n",
            f"@time - prev(@time, {span}{where}) <= 2s",
            # Several fields of one earlier event, of which some are null.
            f"prev({rng.choice('nfv')}, {span}{where}) == null",
            f"prev({rng.choice('nf')}, {span}{where}) == null and prev(@time, {span}{where}) != null",
            f"prev(n, {span}{where}) != null and prev(f, {span}{where}) == null",
            f"prev(n, {span}{where}) == n or prev(f, {span}{where}) == f",
            f"coalesce(prev(n, {span}{where}), @time - prev(@time, {span}{where})) >= 1",
        )
    )


def kind(rng: Random) -> str:
    return rng.choice(("a", "a", "b", "b", "b", "c", "c", "any"))


def bracket(rng: Random, where: str | None = None) -> str:
    return f"[{kind(rng)} where {condition(rng) if where is None else where}]"


@dataclass(frozen=True)
class Keys:
    """The `by` of the form, and what a bracket may have of its own. Where only brackets have keys, all do."""

    form: str
    own: str
    share: float

    def of_bracket(self, rng: Random) -> str:
        return self.own if rng.random() < self.share else ""


ONE_KEY, STEP_KEYS = Keys("", "", 0), Keys("", "by u", 1)
KEYS = (Keys("by u ", "by v", 0.06), Keys("by u, v ", "by v, u", 0.2), Keys("by v ", "by u", 0.1), ONE_KEY, STEP_KEYS)


def keys(rng: Random) -> Keys:
    return rng.choices(KEYS, (85, 5, 4, 4, 2))[0]


# ---------------------------------------------------------------- sequences


@dataclass
class Named:
    """A step that later ones may read, and whether it is repeated."""

    name: str
    repeated: bool


def sequence_rule(rng: Random) -> Draft:
    overlap = rng.choices(("latest", "all", "any"), (60, 22, 18))[0]
    skip = "past_last" if overlap == "latest" else rng.choice(("past_last", "to_next", "none"))
    options = f"maxspan={rng.choice(MAXSPANS)}"
    if overlap != "latest" or rng.random() < 0.2:
        options += f", overlap={overlap}"
    if skip != "past_last" or rng.random() < 0.1:
        options += f", skip={skip}"
    by = keys(rng)
    lines, named = steps(rng, overlap, by)
    if rng.random() < 0.1:
        lines.append(f"until {bracket(rng, rng.choice(('n == 3', 'n == 0 and n != null')))} {by.of_bracket(rng)}")
    if rng.random() < 0.1:
        lines.append(f"having {having_of_steps(rng, named)}")
    return Draft([f"sequence {by.form}with {options}", *lines], *told(rng, named))


def steps(rng: Random, overlap: str, by: Keys) -> tuple[list[str], list[Named]]:
    """One to four positive steps, negations at any place between, before and behind them."""
    count = rng.choices((1, 2, 3, 4), (9, 44, 35, 12))[0]
    lines: list[str] = []
    named: list[Named] = []
    if rng.random() < 0.08:
        lines.append(f"  !{bracket(rng)} {by.of_bracket(rng)} with for={rng.choice(SPANS)}")
    absences = rng.choices((0, 1, 2), (84, 12, 4))[0]
    for place in range(count):
        if place and rng.random() < 0.18:
            lines.append(f"  !{bracket(rng, negation_condition(rng, named))} {by.of_bracket(rng)}")
        last = place == count - 1 and not (absences and rng.random() < 0.5)
        lines.append("  " + step(rng, (place, last), overlap, by, named))
    for _ in range(absences):
        within = f" with within={rng.choice(SPANS)}" if rng.random() < 0.6 else ""
        lines.append(f"  !{bracket(rng, negation_condition(rng, named))} {by.of_bracket(rng)}{within}")
    return lines, named


def step(rng: Random, place_and_last: tuple[int, bool], overlap: str, by: Keys, named: list[Named]) -> str:
    """A last step is neither optional nor open; one that an absence follows may be both."""
    place, last = place_and_last
    if rng.random() < 0.1:
        return group(rng, place, by, named)
    name = f"s{place}"
    runs = rng.choice(runs_of(last, overlap)) if rng.random() < 0.28 else ""
    optional = not last and rng.random() < 0.22
    where = step_condition(rng, named)
    if runs and rng.random() < 0.2:
        where = self_reading(rng, name)
    text = f"[{kind(rng)} where {where}]"
    if rng.random() < 0.1:
        text += f" or {bracket(rng)}"
    if rng.random() < 0.08 and place and not optional:
        text = "next " + text
    options = [f"runs={runs}"] if runs else []
    options += timing(rng) if place else []
    named.append(Named(name, bool(runs)))
    tail = [f"as {name}"] + ([f"with {', '.join(options)}"] if options else [])
    tail.append(by.of_bracket(rng))
    rng.shuffle(tail)
    return ("?" if optional else "") + " ".join([text, *tail])


def runs_of(last: bool, overlap: str) -> tuple[str, ...]:
    if last:
        return ("2", "2", "3")
    return ("2", "2..3", "1..2", "3") if overlap == "any" else ("2", "2..", "2..3", "1..", "3", "3..4", "1..2")


def timing(rng: Random) -> list[str]:
    options = []
    if rng.random() < 0.2:
        options.append(f"within={rng.choice(SPANS)}")
    if rng.random() < 0.08:
        options.append(f"after={rng.choice(('400ms', '1s'))}")
    return options


def group(rng: Random, place: int, by: Keys, named: list[Named]) -> str:
    members = [f"s{place}{letter}" for letter in "pqr"[: rng.choice((2, 2, 3))]]
    inside = "  ".join(f"{bracket(rng, step_condition(rng, named))} as {name} {by.of_bracket(rng)}" for name in members)
    named.extend(Named(name, False) for name in members)
    options = timing(rng) if place else []
    return f"unordered {{ {inside} }}" + (f" with {', '.join(options)}" if options else "")


def step_condition(rng: Random, named: list[Named]) -> str:
    if named and rng.random() < 0.18:
        return across(rng, rng.choice(named))
    return condition(rng)


def negation_condition(rng: Random, named: list[Named]) -> str:
    if named and rng.random() < 0.2:
        return f"n == {rng.choice(named).name}.n"
    return rng.choice(("n == 0", "n < 2", "n == 3", "true", 'f == "q"'))


def across(rng: Random, other: Named) -> str:
    name = other.name
    conditions = [
        f"n >= {name}.n",
        f"n != {name}.n",
        f"f == {name}.f",
        f"not (f == {name}.f)",
        f"@time - {name}.@time < 5s",
    ]
    if other.repeated:
        conditions += [
            f"count({name}) >= 2",
            f"sum({name}.n) >= n",
            f"n >= avg({name}.n)",
            f"n >= min({name}.n)",
            f"n <= max({name}.n)",
            f"distinct({name}.f) <= 2",
            f"coalesce(first({name}.n), 0) <= 2",
        ]
    return rng.choice(conditions)


def self_reading(rng: Random, name: str) -> str:
    return rng.choice(
        (
            f"coalesce({name}.n, 0) <= n",
            f"count({name}) < 3",
            f"sum({name}.n) < 4",
            f"count({name}) == 0 or f == {name}.f",
        )
    )


def having_of_steps(rng: Random, named: list[Named]) -> str:
    one = rng.choice(named).name
    return rng.choice((f"{one}.n >= 1", f"count({one}) >= 1", "n > 0", f"n >= {one}.n", f"sum({one}.n) > 0"))


def told(rng: Random, named: list[Named]) -> tuple[dict[str, str], str]:
    """`emit` and `message` of a sequence."""
    name = rng.choice(named).name
    fields = {
        "many": f"count({name})",
        "total": f"sum({name}.n)",
        "mean": f"avg({name}.n)",
        "least": f"min({name}.n)",
        "most": f"max({name}.n)",
        "kinds": f"distinct({name}.f)",
        "opening": f"first({name}.n)",
        "newest": f"{name}.n",
        "field": "n",
        "when": f"@time - {name}.@time",
        "text": "f",
    }
    chosen = rng.sample(sorted(fields), rng.choice((0, 0, 1, 3)))
    message = f"{{count({name})}} of them, {{{name}.f}} at last" if rng.random() < 0.1 else ""
    return {key: fields[key] for key in chosen}, message


# ---------------------------------------------------------------- the other forms


def aggregate_rule(rng: Random) -> Draft:
    repeat = f", repeat={rng.choice(SPANS)}" if rng.random() < 0.4 else ""
    by = keys(rng)
    brackets, names = named_brackets(rng, by)
    head = f"aggregate {by.form}over {rng.choice(MAXSPANS[1:])}{repeat}"
    return Draft([head, *brackets, f"  having {having(rng, names)}"], gathered(rng, names))


def session_rule(rng: Random) -> Draft:
    most = f", max={rng.choice(('2s', '5s', '12s'))}" if rng.random() < 0.5 else ""
    by = keys(rng)
    brackets, names = named_brackets(rng, by)
    head = f"session {by.form}with gap={rng.choice(('400ms', '1s', '2s', '5s'))}{most}"
    tail = [f"  having {having(rng, names)}"] if rng.random() < 0.5 else []
    return Draft([head, *brackets, *tail], gathered(rng, names))


def window_rule(rng: Random) -> Draft:
    every, size = rng.choice((("5s", ""), ("2s", ""), ("2s", ", size=5s"), ("1s", ", size=3s"), ("5s", ", size=5s")))
    by = keys(rng)
    brackets, names = named_brackets(rng, by)
    tail = [f"  having {having(rng, names)}"] if rng.random() < 0.5 else []
    return Draft([f"window {by.form}every {every}{size}", *brackets, *tail], gathered(rng, names))


def named_brackets(rng: Random, by: Keys) -> tuple[list[str], list[str]]:
    count = rng.choice((1, 1, 2, 3))
    lines, names = [], []
    for place in range(count):
        text = f"  {bracket(rng)}"
        if rng.random() < 0.6:
            names.append(f"b{place}")
            text += f" as b{place}"
        lines.append(f"{text} {by.of_bracket(rng)}")
    return lines, names


def having(rng: Random, names: list[str]) -> str:
    conditions = [
        "count() >= 2",
        "count() > 2",
        "sum(n) > 3",
        "avg(n) >= 1",
        "min(n) > 0",
        "max(n) == 3",
        "distinct(f) >= 2",
        "stddev(n) > 0.4",
        "first(n) <= last(n)",
        "count() >= 2 and last(n) > 0",
    ]
    for name in names:
        conditions += [f"count({name}) > 0", f"sum({name}.n) >= 2", f"count({name}) * 2 >= count()"]
    return rng.choice(conditions)


def gathered(rng: Random, names: list[str]) -> dict[str, str]:
    fields = {
        "many": "count()",
        "total": "sum(n)",
        "mean": "avg(n)",
        "least": "min(n)",
        "most": "max(n)",
        "spread": "stddev(n)",
        "kinds": "distinct(f)",
        "opening": "first(f)",
        "closing": "last(n)",
        "all_of_them": "values(f)",
        "odd": "sum(n * 2 + 1)",
    }
    for name in names:
        fields |= {f"{name}_many": f"count({name})", f"{name}_total": f"sum({name}.n)"}
    return {key: fields[key] for key in rng.sample(sorted(fields), rng.choice((0, 1, 3, 6)))}
