"""What the tests of views share."""

from __future__ import annotations

from tests.support.small_service import Service, run

CARDS = """
view: cards
title: What every card spent
sql: |
  select card, count(*) as purchases, sum(amount) as spent
  from purchase
  where _error is null
  group by card
key: card
"""


def put(service: Service, *texts: str) -> None:
    for text in texts:
        name = text.split("view: ")[1].split("\n")[0]
        (service.config.parent / "views" / f"{name}.yml").write_text(text.lstrip())


def views(service: Service, command: str, *arguments: object, code: int = 0) -> str:
    done = run("views", command, service.config, *arguments)
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr
