"""Many listeners on live alerts, in one process: `python -m benchmarks.http_listeners URL COUNT`, until SIGTERM.

At its end it prints what each heard, how long after its event the first listener heard an alert, and how many were cut
off before.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

AT = re.compile(rb'"at":(\d+)')


@dataclass
class Heard:
    """Of all listeners."""

    counts: list[int]
    delays_ms: list[float] = field(default_factory=list)
    ended: int = 0


async def listen(url: str, number: int, heard: Heard, open_: asyncio.Semaphore) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
    writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode())
    first = await reader.readline()
    if b" 200 " not in first:
        raise SystemExit(f"not let in: {first!r}")
    open_.release()
    try:
        while line := await reader.readline():
            heard.counts[number] += line.startswith(b"event: alert")
            if number == 0 and (found := AT.search(line)):
                heard.delays_ms.append(time.time() * 1000 - int(found[1]))
        heard.ended += 1
    finally:
        writer.close()


async def main(url: str, count: int) -> None:
    heard, open_ = Heard([0] * count), asyncio.Semaphore(0)
    tasks = [asyncio.create_task(listen(url, number, heard, open_)) for number in range(count)]
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    for _ in range(count):
        await open_.acquire()
    print(f"{count} listen", flush=True)
    await ending.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    told = {"heard": heard.counts, "delays_ms": heard.delays_ms, "ended": heard.ended}
    print(f"heard {json.dumps(told)}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
