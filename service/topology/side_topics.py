"""Topics beside the stream tasks' own, of one partition each: labels of alerts, access tokens, the audit trail.

No container reads or writes them: the HTTP API does, and the commands that change rules and tokens. Their formats stand
in samovar.service.rules.labels, access and audit; here is only what they are called and made with, so that the plan of
all topics can have them. The marks of redriven letters (samovar.changelog.formats.redrives) are the fourth of them. The
groups that only the HTTP API and `samovar dlq redrive` join are named here, too.
"""

from __future__ import annotations

from samovar.changelog.log import TopicSpec

AUDIT_KEPT_MS = 365 * 86_400_000
COMPACTED = {"cleanup.policy": "compact"}


def labels_topic(service: str, replication: int = 1) -> TopicSpec:
    return TopicSpec(f"{service}-labels", 1, COMPACTED, replication)


def access_topic(service: str, replication: int = 1) -> TopicSpec:
    return TopicSpec(f"{service}-access", 1, COMPACTED, replication)


def audit_topic(service: str, replication: int = 1) -> TopicSpec:
    settings = {"cleanup.policy": "delete", "retention.ms": str(AUDIT_KEPT_MS)}
    return TopicSpec(f"{service}-audit", 1, settings, replication)


def redrive_group(service: str) -> str:
    return f"{service}-redrive"


def sink_group(service: str, sink: str) -> str:
    return f"{service}-sink-{sink}"
