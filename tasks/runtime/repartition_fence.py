"""What keeps containers out while `samovar repartition` makes the topics of a service again.

The repartition makes the switch topic, and then looks for members of the group; a container joins the group, and then,
before any task is opened, looks for the topic. Whichever was later sees the other.
"""

from __future__ import annotations

from samovar.changelog.log import Log
from samovar.common.errors import Refused


def switch_topic(service: str) -> str:
    """There while the topics of the service are made again, with as many partitions as these get; and empty, so that
    nobody needs a right to read it.
    """
    return f"{service}.repartition.switch"


def refuse_unfinished(service: str, log: Log) -> None:
    """Refuse while a repartition is between the old topics and the new ones."""
    name = switch_topic(service)
    topic = log.topics([name]).get(name)
    if topic is not None:
        raise Refused(
            "repartition-unfinished",
            f"the service {service} is being repartitioned, and its topics are half made",
            f"If nobody is at it any more, end it: `samovar repartition CONFIG --partitions {topic.partitions}`.",
        )
