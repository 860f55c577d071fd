"""/streams and ingest; dead letters and late events; the audit trail; completion data for editors."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field

from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.formats.redrives import LetterPlace
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.service.auth import audit
from samovar.service.config.models import Stream
from samovar.service.http.ingest import ingest
from samovar.service.http.request import Body, Ingesting, Operating, Reading, answered
from samovar.service.http.schemas.alerts import EventsWritten, answers_with
from samovar.service.http.schemas.state import AuditTrail, EventsShown, LatePage, LettersPage, Redriven, StreamsShown
from samovar.service.http.state import AppState
from samovar.service.query.read import ReadOptions, TopicRecord, bounded, field, readable_by
from samovar.service.recovery.dead_letters import LetterFilter, Summary, alone, letters_of, plan_redrive, redrive

router = APIRouter(tags=["streams"])

LETTERS_READ = 50_000
Limit = Annotated[int, Query(ge=1, le=500)]
StreamName = Annotated[str, Path(max_length=250)]


def stream_of(app_state: AppState, name: str) -> Stream:
    streams = app_state.settings.streams
    if name not in streams:
        hint = did_you_mean(name, streams) or f"Streams are {', '.join(streams)}."
        raise Refused("unknown-stream", f"there is no stream `{name[:80]}`", hint)
    return streams[name]


@router.get("/streams", responses=answers_with(StreamsShown))
def streams(context: Reading) -> Response:
    """The inputs of the service."""
    settings = context.app_state.settings
    topics = context.app_state.log.topics([stream.topic for stream in settings.streams.values()])
    found = [
        {
            "stream": name,
            "topic": stream.topic,
            "format": stream.format,
            "key": stream.key,
            "time": stream.time,
            "type": stream.type,
            "fields": stream.fields,
            "pii": list(stream.pii),
            "partitions": topics[stream.topic].partitions if stream.topic in topics else None,
        }
        for name, stream in settings.streams.items()
    ]
    return answered({"streams": found})


@router.get("/streams/{stream}/events", responses=answers_with(EventsShown))
def newest(context: Reading, stream: StreamName, limit: Limit = 50) -> Response:
    """The newest events of a stream."""
    stream_of(context.app_state, stream)
    masks = context.masks
    found = context.app_state.events.newest(stream, limit)
    return answered({"events": [each.data() | {"event": masks.event(stream, each.event)} for each in found]})


@router.post(
    "/streams/{stream}/events",
    responses=answers_with(EventsWritten),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"type": "object", "description": "One event."}},
                "application/x-ndjson": {"schema": {"type": "string", "description": "Events, one per line."}},
            },
        }
    },
)
async def post_events(context: Ingesting, stream: StreamName, request: Request) -> Response:
    """Write events to a stream: one, or one per line. Answered when they are durable; all of them or none."""
    from starlette.concurrency import run_in_threadpool  # noqa: PLC0415 - only here

    stream_of(context.app_state, stream)
    body = await request.body()
    written = await run_in_threadpool(ingest, context.app_state, context.masks, stream, body)
    if written:
        await run_in_threadpool(context.app_state.trail.count, context.name, "events posted", stream, written)
    return answered({"written": written, "bad": []})


# ---------------------------------------------------------------- dead letters and late events


@router.get("/dead-letters", responses=answers_with(LettersPage))
def dead_letters(
    context: Reading,
    reason: Annotated[list[str] | None, Query(max_length=50)] = None,
    limit: Limit = 50,
) -> Response:
    """Records that were not events, newest first, and how many there are of each kind."""
    app_state, masks = context.app_state, context.masks
    summary, found = Summary(), []
    for letter in letters_of(
        app_state.settings, app_state.log, LetterFilter(tuple(reason or ()), start=f"-{LETTERS_READ}")
    ):
        summary.add(letter)
        found.append(letter)
    shown = [masks.raw(letter.stream, letter.data()) for letter in found[::-1][:limit]]
    return answered({"letters": shown, "summary": summary.data(), "total": summary.total})


class RedriveBody(Body):
    """Which letters to put back: of these reasons, or these alone; to another stream, where one is named."""

    reasons: tuple[str, ...] = Field((), max_length=50)
    letters: tuple[str, ...] = Field((), max_length=10_000)
    to: str | None = None
    dry_run: bool = True


@router.post("/dead-letters/redrive", responses=answers_with(Redriven))
def redrive_letters(context: Operating, body: RedriveBody) -> Response:
    """Put dead letters back to where they came from, each at most once. With `dry_run` only say what would be done."""
    app_state = context.app_state
    wanted = LetterFilter(body.reasons, tuple(map(_letter, body.letters)))
    if body.dry_run:
        plan = plan_redrive(app_state.settings, app_state.log, wanted, body.to)
        return answered({"plan": plan.data(), "dry_run": True, "redriven": 0})
    if not app_state.redriving.acquire(blocking=False):
        hint = "Wait until it has ended; letters go out only once."
        raise Refused("too-much-at-once", "another redrive is under way", hint)
    try:
        with alone(app_state.settings, app_state.log) as member:
            plan = plan_redrive(app_state.settings, app_state.log, wanted, body.to)
            told = {"reasons": body.reasons, "letters": body.letters[:100], "to": body.to, "plan": plan.data()}
            audit.record(app_state.log, app_state.settings, context.name, "letters redriven", told)
            done = (
                redrive(app_state.settings, app_state.log, member, plan, body.to, lambda _: None) if plan.places else 0
            )
    finally:
        app_state.redriving.release()
    return answered({"plan": plan.data(), "dry_run": False, "redriven": done})


def _letter(text: str) -> LetterPlace:
    partition, _, offset = text.partition("/")
    if not (partition.isdecimal() and offset.isdecimal() and len(text) < 40):
        raise Refused("bad-place", f"`{text[:80]}` is not a letter", "Write PARTITION/OFFSET, as 3/17.")
    return LetterPlace(int(partition), int(offset))


@router.get("/late", responses=answers_with(LatePage))
def late(context: Reading, limit: Limit = 50) -> Response:
    """Events that came behind event time and were put aside, newest first."""
    app_state, masks = context.app_state, context.masks
    topic = app_state.settings.late.topic
    if topic not in app_state.log.topics([topic]):
        return answered({"events": [], "total": 0})
    readable = readable_by(app_state.settings)
    records = list(bounded(app_state.log, topic, ReadOptions(start=f"-{limit}")))[::-1][:limit]
    shown = [masks.raw(_origin(each)[0], _late(readable(each))) for each in records]
    return answered({"events": shown, "total": _total(app_state, topic)})


def _total(app_state: AppState, topic: str) -> int:
    """In offsets, which is at least how many there are."""
    from samovar.changelog.log import TopicPartition  # noqa: PLC0415 - only here

    partitions = app_state.log.topics([topic])[topic].partitions
    bounds = app_state.log.bounds([TopicPartition(topic, number) for number in range(partitions)])
    return sum(end - begin for begin, end in bounds.values())


def _origin(record: TopicRecord) -> tuple[str, dict[str, str]]:
    told = {name: value.decode("utf-8", "replace") for name, value in record.headers}
    return told.get(PREFIX + "topic", ""), told


def _late(record: TopicRecord) -> dict[str, Any]:
    topic, told = _origin(record)
    by = told.get("samovar.late.ms", "")
    partition, offset = told.get(PREFIX + "partition", ""), told.get(PREFIX + "offset", "")
    is_known = bool(topic) and partition.isdecimal() and offset.isdecimal()
    origin = {"topic": topic, "partition": int(partition), "offset": int(offset)} if is_known else None
    head = {"partition": record.at.partition, "offset": record.offset, "time": record.time_ms, "stream": topic}
    head |= {"late_ms": int(by) if by.lstrip("-").isdecimal() else None, "from": origin}
    return head | field("key", record.key, unpack=False) | field("value", record.value, unpack=True)


# ---------------------------------------------------------------- who changed what


@router.get("/audit", responses=answers_with(AuditTrail))
def trail(context: Operating, limit: Limit = 50) -> Response:
    """Who changed what, newest first."""
    return answered(
        {"entries": [each.data() for each in audit.entries(context.app_state.log, context.app_state.settings, limit)]}
    )
