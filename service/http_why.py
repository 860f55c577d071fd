"""Why a rule did or did not fire for a key: its events, run through the rule once more, with what each did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samovar.patterns.compile import Program
from samovar.patterns.follow import Names, Story, follow, iso_time, listed
from samovar.patterns.matcher import Matches
from samovar.patterns.native import Other, joined
from samovar.patterns.replay import Replay
from samovar.patterns.syntax import Scalar
from samovar.patterns.why import explain
from samovar.service.access_masks import Masks
from samovar.service.http_events import Event
from samovar.service.settings_models import ServiceFile


def story_of(program: Program, key: Sequence[Scalar], events: Sequence[Event], decoders: Any) -> Story:
    """One rule over these events, in the order of their times. An event's number is its place in the list."""
    import numpy as np  # noqa: PLC0415 - with its kernel loaded already

    def feed(replay: Replay) -> Iterator[Matches]:
        for number, event in enumerate(events):
            if event.value is None or event.time is None:
                continue
            decoder = decoders(event.stream, program.fields)
            batch = decoder.batch()
            decoder.decode(batch, joined([event.value]), offsets=np.array([number]), copy=True)
            yield replay.feed(batch)
        yield from replay.finish()

    return follow(program, key, feed, flush=False)


def decoders_of(settings: ServiceFile) -> Any:
    """What decodes a stream's values, made once a stream and set of fields."""
    from samovar.service.avro_streams import decoding_of  # noqa: PLC0415 - loads Avro where it is needed

    made: dict[tuple[str, tuple[str, ...]], Any] = {}

    def get(stream: str, fields: tuple[str, ...]) -> Any:
        if (stream, fields) not in made:
            own = settings.streams[stream]
            made[stream, fields] = decoding_of(own)(fields, own.time, own.type, stream)
        return made[stream, fields]

    return get


def told_of(masks: Masks, program: Program, key: Mapping[str, Any], events: Sequence[Event]) -> dict[str, Any]:
    """The same as data, with what may not be seen struck out of the sentences."""
    story = story_of(program, list(key.values()), events, decoders_of(masks.settings))
    return story_data(masks, story, events)


def story_data(masks: Masks, story: Story, events: Sequence[Event]) -> dict[str, Any]:
    told = explain(story, names_of(events))
    hidden = {value for event in events for value in masks.values_of(event.stream, event.event)}
    hidden |= {str(value) for name, value in story.key.items() if masks.hides(name)}
    shown = []
    for seen, sentences in told.events:
        event = events[seen.offset]
        fields = {name: value.json if isinstance(value, Other) else value for name, value in seen.fields.items()}
        where = {"stream": event.stream, "partition": event.partition, "offset": event.offset}
        shown.append(
            where
            | {
                "time": seen.time,
                "type": seen.type,
                "fields": masks.fields(fields),
                "told": [masks.text(sentence, hidden) for sentence in sentences],
            }
        )
    conclusion = [masks.text(sentence, hidden) for sentence in told.conclusion]
    return {"matches": story.matches, "events": shown, "conclusion": conclusion}


def names_of(events: Sequence[Event]) -> Names:
    """Events by their type and time."""

    def event(number: int) -> str:
        return f"the {events[number].type} at {iso_time(events[number].time or 0)}"

    def several(numbers: Sequence[int]) -> str:
        return listed((iso_time(events[number].time or 0) for number in numbers), 4)

    return Names(event, iso_time, several)
