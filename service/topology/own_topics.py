"""A topic of one partition that is needed now: published rules, labels, tokens, the audit trail, marks of letters."""

from __future__ import annotations

from samovar.changelog.log import Log
from samovar.service.config.models import ServiceFile
from samovar.service.topology.topics import Role, bootstrap_of, mismatches, missing, refuse, single_topics


def ensure_topic(settings: ServiceFile, log: Log, role: Role) -> None:
    """Made where it is missing. Refused where it is otherwise, or missing with `topics: check`, with the way out."""
    (spec,) = (each for each in single_topics(settings) if each.role is role)
    found = log.topics([spec.name]).get(spec.name)
    bootstrap = bootstrap_of(settings)
    if found is not None:
        refuse(list(mismatches(spec, found, bootstrap)))
    elif settings.topics != "create" and bootstrap is not None:
        refuse([missing(spec, bootstrap)])
    else:
        log.create([spec])
