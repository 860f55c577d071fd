"""`samovar match ... --explain KEY`: why a key did or did not match, event by event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from samovar.common.texts import counted
from samovar.native.kernel import Other
from samovar.patterns.engine.compile import Program, compile_rules
from samovar.patterns.engine.matcher import Matches
from samovar.patterns.engine.replay import BadLine, EventReplay, Lines
from samovar.patterns.explain.key_trace import KeyTrace, follow, iso_time, key_candidates
from samovar.patterns.explain.why import explain as explained
from samovar.patterns.explain.why import value_text
from samovar.patterns.syntax.tree import Rule
from samovar.service.offline.match import BAD_LINES, FINE, USAGE, EventFile, MatchRunOptions

SHOWN_EVENTS = 200


def explain(program: Program, source: EventFile, options: MatchRunOptions, out: IO[bytes], err: IO[str]) -> int:
    """One explanation per rule, on standard output. Gives the exit code."""
    assert options.explain is not None
    blocks = source.repeatable()  # each rule and each reading of the key is a run of its own
    bad: dict[int, BadLine] = {}
    code = FINE

    def trace(rule: Rule, key: Any) -> KeyTrace:
        alone = compile_rules([rule])

        def feed(replay: EventReplay) -> Iterator[Matches]:
            lines = Lines(options.decoder(alone), lambda line: bad.update({line.number: line}))
            for block in blocks():
                yield replay.feed(lines.take(block))
            yield replay.feed(lines.end())
            yield from replay.finish()

        return follow(alone, key, feed, **options.replay)

    for plan in program.rules:
        names = [key.name for key in plan.rule.form.by]
        candidates = key_candidates(names, options.explain) if names else [()]
        if not candidates:
            err.write(
                f"{plan.rule.id}: the key is {', '.join(names)}: write {','.join(f'{name}=...' for name in names)}\n"
            )
            code = USAGE
            continue
        story = trace(plan.rule, candidates[0])
        if not story.events:
            others = (trace(plan.rule, key) for key in candidates[1:])
            story = next((other for other in others if other.events), story)
        out.write((json_of(story) if options.json else text_of(story) + "\n").encode())
    for line in bad.values():
        err.write(f"{source.name}:{line}\n")
    return code or (BAD_LINES if bad else FINE)


def json_of(story: KeyTrace) -> str:
    """The same for programs, on one line."""
    told = explained(story)
    events = [
        {
            "line": event.offset + 1,
            "ts": event.time,
            "type": event.type,
            "fields": {name: value.json if isinstance(value, Other) else value for name, value in event.fields.items()},
            "told": sentences,
        }
        for event, sentences in told.events
    ]
    record = {"rule": story.plan.rule.id, "key": story.key, "matches": story.matches, "events": events}
    return json.dumps({**record, "conclusion": told.conclusion}, ensure_ascii=False) + "\n"


def text_of(story: KeyTrace) -> str:
    """The explanation as text: a heading, the events, the conclusion."""
    told = explained(story)
    key = ", ".join(f"{name}={value_text(value)}" for name, value in story.key.items()) or "all events"
    count = len(told.events)
    heading = f"{counted(count, 'event')}, {counted(story.matches, 'match', 'matches')}"
    lines = [f"{story.plan.rule.id}, {key}: {heading}", ""]
    skipped = max(0, count - SHOWN_EVENTS)
    if skipped:
        lines.append(f"  ({skipped:,} earlier events are left out)")
    for event, sentences in told.events[skipped:]:
        fields = ", ".join(
            f"{name}={value_text(value)}"
            for name, value in event.fields.items()
            if value is not None and name not in story.key
        )
        lines.append(f"  line {event.offset + 1:<6} {iso_time(event.time)}  {event.type}  {fields}".rstrip())
        lines += [f"      {sentence}" for sentence in sentences]
    return "\n".join([*lines, "", *told.conclusion])
