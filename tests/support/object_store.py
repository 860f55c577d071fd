"""A stand-in for S3: moto's server in this process, with a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

BUCKET = "cold"


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """Options of a client of it, for `archive: {options}`."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - takes long to load

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"endpoint_url": f"http://{host}:{port}", "key": "id", "secret": "word"}
        client(options).mkdir(BUCKET)
        yield options
    finally:
        server.stop()


def client(options: Mapping[str, str]) -> Any:
    import s3fs  # noqa: PLC0415 - as above

    return s3fs.S3FileSystem(**options, skip_instance_cache=True, use_listings_cache=False)
