"""Who changed what, for the audit topic of the service, where it has one. The rules topic itself keeps the author, time
and note of every change.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, util
from typing import Any

from samovar.changelog.log import Log
from samovar.service.settings_models import ServiceFile


def audited(log: Log, settings: ServiceFile, who: str, what: str, detail: Mapping[str, Any]) -> None:
    """Write it down."""
    if util.find_spec("samovar.service.audit") is not None:
        import_module("samovar.service.audit").record(log, settings, who, what, dict(detail))
