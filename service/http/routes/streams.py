"""/streams and ingest; dead letters and late events; the audit trail."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from samovar.changelog.formats.dead_letters import PREFIX
from samovar.changelog.formats.redrives import DeadLetterPlace
from samovar.changelog.log import Append, TopicPartition
from samovar.changelog.partitioner import key_texts
from samovar.common.errors import Refused
from samovar.common.suggest import did_you_mean
from samovar.native.kernel import lines_of
from samovar.patterns.engine.avro.write import AvroValueError
from samovar.patterns.engine.decoder import Decoder
from samovar.service.auth import audit
from samovar.service.config.models import Stream
from samovar.service.http import schemas
from samovar.service.http.problems import RefusedWithErrors
from samovar.service.http.request import Body, Ingesting, Operating, Reading, RequestContext, answered, event_data
from samovar.service.http.schemas import answers_with, fields_of
from samovar.service.masking.fields import HIDDEN, Masks
from samovar.service.query.read import ReadOptions, TopicRecord, bounded, field, readable_by
from samovar.service.recovery.dead_letters import LetterFilter, Summary, alone, letters_of, plan_redrive, redrive
from samovar.service.topology.encoding import encoder_of, slices
from samovar.service.topology.topics import counted_topics, partitions_of

router = APIRouter(tags=["streams"])

LETTERS_READ = 50_000
LINES_MOST = 50_000
SHOWN_BAD = 20
Limit = Annotated[int, Query(ge=1, le=500)]
StreamName = Annotated[str, Path(max_length=250)]


def stream_of(context: RequestContext, name: str) -> Stream:
    streams = context.settings.streams
    if name not in streams:
        hint = did_you_mean(name, streams) or f"Streams are {', '.join(streams)}."
        raise Refused("unknown-stream", f"there is no stream `{name[:80]}`", hint)
    return streams[name]


@router.get("/streams", responses=answers_with(schemas.StreamsShown))
def streams(context: Reading) -> Response:
    """The inputs of the service."""
    settings = context.settings
    topics = context.log.topics([stream.topic for stream in settings.streams.values()])
    found = []
    for name, stream in settings.streams.items():
        partitions = topics[stream.topic].partitions if stream.topic in topics else None
        found.append(fields_of(schemas.StreamShown, stream, stream=name, pii=list(stream.pii), partitions=partitions))
    return answered({"streams": found})


@router.get("/streams/{stream}/events", responses=answers_with(schemas.EventsShown))
def newest(context: Reading, stream: StreamName, limit: Limit = 50) -> Response:
    """The newest events of a stream."""
    stream_of(context, stream)
    found = context.app_state.events.newest(stream, limit)
    return answered({"events": [event_data(context, each) for each in found]})


@router.post(
    "/streams/{stream}/events",
    responses=answers_with(schemas.EventsWritten),
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
    stream_of(context, stream)
    body = await request.body()
    written = await run_in_threadpool(ingest, context, stream, body)
    if written:
        await run_in_threadpool(context.app_state.trail.count, context.name, "events posted", stream, written)
    return answered({"written": written, "bad": []})


def ingest(context: RequestContext, name: str, body: bytes) -> int:
    """Appends all lines, or none where one is bad: checked as a container would read them. Returns how many."""
    stream = stream_of(context, name)
    block = body.strip(b"\r\n\t ") + b"\n"
    messages = lines_of(block)
    if len(messages) > LINES_MOST:
        raise Refused("request-large", f"{len(messages):,} lines at once", f"Send at most {LINES_MOST:,} in a request.")
    decoder = Decoder([stream.key], stream.time, stream.type, name)
    batch = decoder.batch()
    verdicts = decoder.decode(batch, messages)
    bad = [(row, decoder.bad(verdicts[row], messages[row])) for row in np.flatnonzero(verdicts["code"]).tolist()]
    faults = [(row, each.column, each.reason) for row, each in bad if messages[row].strip() or len(messages) == 1]
    rows = np.flatnonzero(verdicts["code"] == 0)
    values = slices(block, messages.starts[rows], messages.ends[rows])
    encoder = encoder_of(stream)
    if encoder is not None:
        for place, row in enumerate(rows.tolist()):
            try:
                values[place] = encoder.encode(values[place])
            except AvroValueError as error:
                faults.append((row, None, str(error)))
    if faults:
        raise _bad_events(context.masks, name, faults)
    pairs = list(zip(key_texts(batch, 0, messages), values, strict=True))
    if not pairs:
        return 0
    partitions = partitions_of(context.settings, context.log.topics(counted_topics(context.settings)))
    return context.log.append([Append(topic=stream.topic, records=pairs, among=partitions)])


def _bad_events(masks: Masks, stream: str, faults: list[tuple[int, int | None, str]]) -> Refused:
    """A reason quotes what was wrong, which may be what nobody is to see again, in a log on the way for instance."""
    hides = any(each.startswith(f"{stream}.") for each in masks.hidden)
    errors = [
        {"where": f"line {row + 1}" + ("" if column is None else f":{column}"), "what": HIDDEN if hides else reason}
        for row, column, reason in sorted(faults)[:SHOWN_BAD]
    ]
    count = "1 line is" if len(faults) == 1 else f"{len(faults):,} lines are"
    what = f"{count} no event of the stream `{stream}`; nothing was written"
    return RefusedWithErrors(code="bad-events", what=what, hint="Fix them and send all again.", more={"errors": errors})


# ---------------------------------------------------------------- dead letters and late events


@router.get("/dead-letters", responses=answers_with(schemas.LettersPage))
def dead_letters(
    context: Reading, reason: Annotated[list[str] | None, Query(max_length=50)] = None, limit: Limit = 50
) -> Response:
    """Records that were not events, newest first, and how many there are of each kind."""
    wanted = LetterFilter(tuple(reason or ()), start=f"-{LETTERS_READ}")
    summary, found = Summary(), list(letters_of(context.settings, context.log, wanted))
    for letter in found:
        summary.add(letter)
    shown = [context.masks.raw(letter.stream, letter.data()) for letter in found[::-1][:limit]]
    return answered({"letters": shown, "summary": summary.data(), "total": summary.total})


class RedriveBody(Body):
    """Which letters to put back: of these reasons, or these alone; to another stream, where one is named."""

    reasons: tuple[str, ...] = Field((), max_length=50)
    letters: tuple[str, ...] = Field((), max_length=10_000)
    to: str | None = None
    dry_run: bool = True


@router.post("/dead-letters/redrive", responses=answers_with(schemas.Redriven))
def redrive_letters(context: Operating, body: RedriveBody) -> Response:
    """Put dead letters back to where they came from, each at most once. With `dry_run` only say what would be done."""
    app_state = context.app_state
    wanted = LetterFilter(body.reasons, tuple(map(_parse_place, body.letters)))
    if body.dry_run:
        plan = plan_redrive(context.settings, context.log, wanted, body.to)
        return answered({"plan": plan.data(), "dry_run": True, "redriven": 0})
    if not app_state.redriving.acquire(blocking=False):
        hint = "Wait until it has ended; letters go out only once."
        raise Refused("too-much-at-once", "another redrive is under way", hint)
    try:
        with alone(context.settings, context.log) as member:
            plan = plan_redrive(context.settings, context.log, wanted, body.to)
            told = {"reasons": body.reasons, "letters": body.letters[:100], "to": body.to, "plan": plan.data()}
            context.record("dead letters redriven", told)
            done = 0
            if plan.places:
                done = redrive(context.settings, context.log, member, plan, body.to, lambda _: None)
    finally:
        app_state.redriving.release()
    return answered({"plan": plan.data(), "dry_run": False, "redriven": done})


def _parse_place(text: str) -> DeadLetterPlace:
    partition, _, offset = text.partition("/")
    if not (partition.isdecimal() and offset.isdecimal() and len(text) < 40):
        raise Refused("bad-place", f"`{text[:80]}` is not a dead letter", "Write PARTITION/OFFSET, as 3/17.")
    return DeadLetterPlace(int(partition), int(offset))


@router.get("/late", responses=answers_with(schemas.LatePage))
def late(context: Reading, limit: Limit = 50) -> Response:
    """Events that came behind event time and were put aside, newest first."""
    topic = context.settings.late.topic
    if topic not in context.log.topics([topic]):
        return answered({"events": [], "total": 0})
    readable = readable_by(context.settings)
    records = list(bounded(context.log, topic, ReadOptions(start=f"-{limit}")))[::-1][:limit]
    shown = [context.masks.raw(told["stream"], told) for told in map(_late, map(readable, records))]
    places = [TopicPartition(topic, number) for number in range(context.log.topics([topic])[topic].partitions)]
    total = sum(end - begin for begin, end in context.log.bounds(places).values())  # at least: offsets have gaps
    return answered({"events": shown, "total": total})


def _late(record: TopicRecord) -> dict[str, Any]:
    told = {name: value.decode("utf-8", "replace") for name, value in record.headers}
    topic, by = told.get(PREFIX + "topic", ""), told.get("samovar.late.ms", "")
    partition, offset = told.get(PREFIX + "partition", ""), told.get(PREFIX + "offset", "")
    is_known = bool(topic) and partition.isdecimal() and offset.isdecimal()
    origin = {"topic": topic, "partition": int(partition), "offset": int(offset)} if is_known else None
    head = {"partition": record.at.partition, "offset": record.offset, "time": record.time_ms, "stream": topic}
    head |= {"late_ms": int(by) if by.lstrip("-").isdecimal() else None, "from": origin}
    return head | field("key", record.key, unpack=False) | field("value", record.value, unpack=True)


# ---------------------------------------------------------------- who changed what


@router.get("/audit", responses=answers_with(schemas.AuditTrail))
def trail(context: Operating, limit: Limit = 50) -> Response:
    """Who changed what, newest first."""
    return answered({"entries": audit.entries(context.log, context.settings, limit)})
