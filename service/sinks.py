"""Alert sinks."""

from __future__ import annotations

from dataclasses import dataclass

from samovar.changelog.log import Log
from samovar.service.settings_models import ServiceFile


@dataclass(frozen=True)
class SinkReport:
    name: str
    delivered: int
    failed: int
    waiting: int


class Sinks:
    def __init__(self, settings: ServiceFile, log: Log) -> None:
        pass

    def reports(self) -> list[SinkReport]:
        return []
