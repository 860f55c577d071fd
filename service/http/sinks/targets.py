"""The two kinds of sink: a webhook that is signed and asked again, and a file of JSON lines.

A webhook gets one alert per request, as the topic has it, by POST:

    Content-Type: application/json
    Idempotency-Key, Samovar-Alert: the alert's id          the same one twice is the same alert
    Samovar-Service, Samovar-Sink
    Samovar-Signature: t=UNIX_SECONDS,v1=HEX                 HMAC-SHA256 of `UNIX_SECONDS.BODY`, keyed by the secret

A receiver compares the signature in constant time, and refuses one whose time is minutes away. 2xx is taken. What is
passing (no answer, 5xx, 408, 425, 429) is tried again for as long as it takes, with growing pauses. What is refused
(any other answer) is tried again some times; then it is left out, counted and told: one alert that a receiver cannot
take must not hold up all that come after it. Redirects are not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import httpx2

from samovar.common.folders import opened_private
from samovar.service.alerts.index import Alert
from samovar.service.config.models import SinkSettings

FIRST_S = 0.5
REFUSED_TRIES = 5
PASSING = (408, 425, 429)

Wait = Callable[[float], None]
OnFailure = Callable[[str], None]


def signature(secret: str, at_s: int, body: bytes) -> str:
    """
    >>> signature("0123456789abcdef", 1700000000, b"{}")[:27]
    't=1700000000,v1=fbdc05d7cf8'
    """
    made = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={made}"


def pause_s(attempt: int, most_s: float, jitter: float) -> float:
    """Twice as long each time, up to a bound, and never the same for all who wait.

    >>> [pause_s(attempt, 60, 1.0) for attempt in (1, 2, 3, 20)]
    [0.5, 1.0, 2.0, 60.0]
    """
    return min(FIRST_S * 2.0 ** min(attempt - 1, 30), most_s) * jitter


class Webhook:
    """Posts alerts, one per request."""

    def __init__(self, name: str, service: str, settings: SinkSettings, now_s: Callable[[], float]) -> None:
        assert settings.url is not None
        self._name, self._service, self._now_s = name, service, now_s
        self._url = settings.url.get_secret_value()
        self._secret = None if settings.secret is None else settings.secret.get_secret_value()
        self._most_s = settings.max_backoff_ms / 1000
        self._client = httpx2.Client(timeout=settings.timeout_ms / 1000, trust_env=False, follow_redirects=False)

    def deliver(self, alerts: Sequence[Alert], wait: Wait, on_failure: OnFailure) -> None:
        for alert in alerts:
            self._one(alert, wait, on_failure)

    def _one(self, alert: Alert, wait: Wait, on_failure: OnFailure) -> None:
        refusals, attempt = 0, 0
        while True:
            attempt += 1
            status = self._post(alert)
            if status is not None and 200 <= status < 300:
                return
            if status is None:
                on_failure("the receiver does not answer")
            elif status >= 500 or status in PASSING:
                on_failure(f"the receiver answered with {status}")
            else:
                refusals += 1
                on_failure(f"the receiver refused an alert with {status}")
                if refusals >= REFUSED_TRIES:
                    on_failure(f"alert {alert.id} is left out: it was refused {refusals} times with {status}")
                    return
            wait(pause_s(attempt, self._most_s, random.uniform(0.5, 1.0)))

    def _post(self, alert: Alert) -> int | None:
        """The answer's status; None where there was none. What went wrong may quote the address, and is not told."""
        body = alert.body.encode()
        headers = {
            "content-type": "application/json",
            "idempotency-key": alert.id,
            "samovar-alert": alert.id,
            "samovar-service": self._service,
            "samovar-sink": self._name,
        }
        if self._secret is not None:
            headers["samovar-signature"] = signature(self._secret, int(self._now_s()), body)
        try:
            return int(self._client.post(self._url, content=body, headers=headers).status_code)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
            return None


class FileTarget:
    """Appends alerts, a JSON line each. Opened again for every batch, so that it may be rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def deliver(self, alerts: Sequence[Alert], wait: Wait, on_failure: OnFailure) -> None:
        lines = "".join(f"{alert.body}\n" for alert in alerts).encode()
        attempt = 0
        while True:
            attempt += 1
            try:
                self._append(lines)
                return
            except OSError as error:
                on_failure(f"the file cannot be written: {error.strerror or error}")
                wait(pause_s(attempt, 60.0, random.uniform(0.5, 1.0)))

    def _append(self, lines: bytes) -> None:
        """All lines, durably. Half a line that a crash left is ended first."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._path, "a+b", opener=opened_private) as file:
            if file.seek(0, os.SEEK_END) and self._last(file) != b"\n":
                file.write(b"\n")
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _last(file: IO[bytes]) -> bytes:
        file.seek(-1, os.SEEK_END)
        return file.read(1)
