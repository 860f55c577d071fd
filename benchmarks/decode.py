"""How many JSON messages per second the decoder takes, on one core: python -m benchmarks.decode [FILE.jsonl]

Without a file: purchases of about 110 bytes, and process events of about 240 with nested fields. Each is decoded in
batches of 20,000, as the service does; the best of five rounds counts. For scale, the strict decoder in plain Python
and a bare json.loads over the first 20,000.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from samovar.native.kernel import Messages, lines_of
from samovar.patterns.engine.decoder import Decoder
from tests.support.strict_decoder import decode_strict

BATCH = 20_000
ROUNDS = 5
FLAT = ("card", "amount")
NESTED = ("process.name", "process.parent.name", "user.id", "user.name", "host.os.name")


def purchases(count: int) -> bytes:
    random = Random(7)

    def event(ts: int) -> str:
        card, amount = random.randrange(50_000), round(random.lognormvariate(3, 1.5), 2)
        country = random.choice(["US", "GB", "DE", "FR", "IN", "SG", "BR", "JP"])
        who = {"card": f"card-{card:06d}", "amount": amount, "merchant": f"m-{card * 7 % 5000:04d}"}
        return json.dumps({**who, "country": country, "type": "purchase", "ts": ts}, separators=(",", ":"))

    return "\n".join(map(event, range(1_700_000_000_000, 1_700_000_000_000 + count))).encode()


def processes(count: int) -> bytes:
    def event(pid: int) -> str:
        process = {"name": "cmd.exe", "pid": pid, "args": ["/c", "dir"], "parent": {"name": "explorer.exe"}}
        who = {"user": {"id": f"u{pid % 900}", "name": "Müller"}, "host": {"os": {"name": "windows"}}}
        whole = {"ts": "2023-11-14T22:13:20.123Z", "type": "process", "process": process, **who}
        return json.dumps(whole, ensure_ascii=False)

    return "\n".join(map(event, range(count))).encode()


def rate(run: Callable[[], object], count: int) -> float:
    """Messages per second in the best round."""

    def seconds() -> float:
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun

    return count / min(seconds() for _ in range(ROUNDS))


def decode_all(decoder: Decoder, messages: Messages) -> None:
    for at in range(0, len(messages), BATCH):
        part = Messages(messages.data, messages.starts[at : at + BATCH], messages.ends[at : at + BATCH])
        decoder.decode(decoder.batch(), part)


def report(name: str, text: bytes, paths: tuple[str, ...]) -> None:
    lines, decoder = lines_of(text), Decoder(paths)
    few = [lines[i] for i in range(min(BATCH, len(lines)))]
    verdicts = decoder.decode(decoder.batch(), lines)
    bad = int((verdicts["code"] != 0).sum())
    print(f"{name}: {len(lines):,} messages of {len(text) / len(lines):.0f} bytes, {bad:,} bad, {len(paths)} fields")
    for what, speed in (
        ("split into lines", rate(lambda: lines_of(text), len(lines))),
        ("kernel", rate(lambda: decode_all(decoder, lines), len(lines))),
        ("json.loads alone", rate(lambda: [json.loads(line) for line in few], len(few))),
        ("strict decoder", rate(lambda: [decode_strict(line, paths) for line in few], len(few))),
    ):
        print(f"  {what:<18}{speed / 1e6:8.3f} million messages/s {speed * len(text) / len(lines) / 1e6:8.0f} MB/s")


def main(arguments: list[str]) -> None:
    if arguments:
        report(arguments[0], Path(arguments[0]).read_bytes(), FLAT)
        return
    report("purchases", purchases(200_000), FLAT)
    report("processes", processes(100_000), NESTED)


if __name__ == "__main__":
    main(sys.argv[1:])
