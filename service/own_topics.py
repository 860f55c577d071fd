"""Topics beside the stream tasks' own, each made by whoever needs it first: labels, the audit trail, access tokens."""

from __future__ import annotations

from samovar.changelog.errors import Refused
from samovar.changelog.log import Log, TopicSpec
from samovar.service.settings_models import ServiceFile
from samovar.service.topics import Planned, bootstrap_of, create_command


def ensure_topic(settings: ServiceFile, log: Log, spec: TopicSpec, what: str) -> None:
    """A topic, made where it is missing; with `topics: check` refused, with the command that makes it."""
    if spec.name in log.topics([spec.name]):
        return
    bootstrap = bootstrap_of(settings)
    if settings.topics != "create" and bootstrap is not None:
        planned = Planned(spec.name, spec.partitions, spec.settings, spec.replication)
        raise Refused(
            "topic-missing", f"the topic {spec.name} ({what}) does not exist", create_command(planned, bootstrap)
        )
    log.create([spec])
