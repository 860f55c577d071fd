"""Events that come by HTTP: checked as a container would read them, then appended; answered when they are durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from samovar.changelog.log import Append
from samovar.changelog.partitioner import key_texts
from samovar.common.errors import Refused
from samovar.native.kernel import lines_of
from samovar.patterns.engine.avro.write import AvroValueError
from samovar.patterns.engine.decoder import Decoder
from samovar.service.masking.fields import HIDDEN, Masks
from samovar.service.topology.encoding import encoder_of, slices
from samovar.service.topology.topics import counted_topics, partitions_of

if TYPE_CHECKING:
    from samovar.service.http.state import AppState

LINES_MOST = 50_000
SHOWN_BAD = 20


@dataclass
class BadEvents(Refused):
    """Lines that are not events of their stream. Nothing was written."""

    more: dict[str, Any] = field(default_factory=dict)


def ingest(app_state: AppState, masks: Masks, name: str, body: bytes) -> int:
    """Append all lines, or none where one is bad. How many."""
    stream = app_state.settings.streams[name]
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
        raise _refused(masks, name, faults)
    pairs = list(zip(key_texts(batch, 0, messages), values, strict=True))
    if not pairs:
        return 0
    partitions = partitions_of(app_state.settings, app_state.log.topics(counted_topics(app_state.settings)))
    return app_state.log.append([Append(stream.topic, pairs, among=partitions)])


def _refused(masks: Masks, stream: str, faults: list[tuple[int, int | None, str]]) -> BadEvents:
    """A reason quotes what was wrong, which may be what nobody is to see again, in a log on the way for instance."""
    hides = any(each.startswith(f"{stream}.") for each in masks.hidden)
    errors = [
        {"where": f"line {row + 1}" + ("" if column is None else f":{column}"), "what": HIDDEN if hides else reason}
        for row, column, reason in sorted(faults)[:SHOWN_BAD]
    ]
    count = "1 line is" if len(faults) == 1 else f"{len(faults):,} lines are"
    return BadEvents(
        "bad-events",
        f"{count} no event of the stream `{stream}`; nothing was written",
        "Mend them and send all again.",
        more={"errors": errors},
    )
