"""Many listeners on live alerts, in one process: `python -m benchmarks.http_listeners URL COUNT`, until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import sys
from urllib.parse import urlsplit


async def listen(url: str, heard: list[int], open_: asyncio.Semaphore) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode())
    first = await reader.readline()
    if b" 200 " not in first:
        raise SystemExit(f"not let in: {first!r}")
    open_.release()
    try:
        while line := await reader.readline():
            heard[0] += line.startswith(b"event: alert")
    finally:
        writer.close()


async def main(url: str, count: int) -> None:
    heard, open_ = [0], asyncio.Semaphore(0)
    tasks = [asyncio.create_task(listen(url, heard, open_)) for _ in range(count)]
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    for _ in range(count):
        await open_.acquire()
    print(f"{count} listen", flush=True)
    await ending.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"heard {heard[0]}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
