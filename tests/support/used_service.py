"""A service that was lived in: alerts with labels, a shared list that changed, sessions, dead letters and late events,
a view in two versions, snapshots, marked fields and a token a role. For tests that walk every path of the API.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from samovar.changelog.log import Append
from samovar.changelog.spark.sorted_tables import write_files
from samovar.service.auth.tokens import Role, add_token
from samovar.service.topology.logs import opened
from samovar.service.views.served_rows import FOLDER, RowCodec
from samovar.service.views.store import ViewManifest, ViewStore
from tests.support.http_server import Served, served, wait_for
from tests.support.small_service import Service, catch_up, make, many, purchase

MARKED = """
service: s
streams:
  purchase:
    key: card
    partitions: 2
    schema: {card: string, amount: double, country: string}
    slack: 2s
    pii: [card]
"""
CONFIG = f"http: {{requests_per_s: 100000}}{MARKED}"
VISITS = """
rule: visits
title: What a card did in one go
match: |
  session by card with gap=30m
    [purchase where amount > 0] as p
emit: {purchases: count(p), paid: sum(p.amount)}
"""
ABROAD = """
rule: abroad
lists: {far: [FR]}
match: |
  sequence by card with maxspan=10m
    [purchase where country in $far] as there
    [purchase where country not in $far] as here
tests:
  - name: there and back
    events:
      - "+0m purchase {card: c1, country: FR, amount: 2}"
      - "+1m purchase {card: c1, country: US, amount: 2}"
    expect: [{key: {card: c1}}]
"""
VIEW = """view: cards
title: What a card paid
sql: |
  SELECT card, count(*) AS purchases, sum(amount) AS paid FROM purchase GROUP BY card
key: [card]
"""
ROWS = {"card": ["c1", "c2", "c3"], "purchases": [3, 1, 2], "paid": [10.5, 900.0, None]}


@contextmanager
def lived(folder: Path) -> Iterator[tuple[Served, dict[str, str]]]:
    """Served, with a container next to it, and asked by an operator; the tokens by role."""
    service = make(folder)
    service.config.write_text(CONFIG)
    for name, text in {"visits": VISITS, "abroad": ABROAD}.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    _publish_view(service)
    service.produce(many(60))
    bad = [(b"c1", b"no json"), (b"c2", b'{"card": "c2", "ts": "never"}')]
    with service.log() as log:
        log.append([Append(topic="purchase", records=bad)])
    settings = service.settings
    with opened(settings) as log:
        tokens = {role.word: add_token(settings, log, role.word, role, "test") for role in Role}
    with service.container() as container, served(service) as made:
        site = made.as_(tokens["operator"])
        for task in container.tasks.values():
            task.take_snapshot()
        service.produce([purchase("c1", 1, 3)])  # late
        site.post("/lists/far/add", {"items": ["DE"], "note": "so far"})
        catch_up(container)
        wait_for(lambda: len(site.get("/alerts")["alerts"]) > 1)
        alerts = site.get("/alerts?limit=2")["alerts"]
        for alert, label in zip(alerts, ("confirmed", "false_alarm"), strict=True):
            site.put(f"/alerts/{alert['id']}/label", {"label": label})
        site.post("/rules/publish", {"text": VISITS.replace("30m", "20m"), "note": "shorter"})
        yield site, tokens


def _publish_view(service: Service) -> None:
    folder = service.config.parent / "views"
    folder.mkdir()
    (folder / "cards.yml").write_text(VIEW)
    store = ViewStore(service.settings.views.store, "cards")
    for version in (1, 2):
        with store.writing():
            part = store.being_made(store.next_version())
            part.mkdir()
            pq.write_table(pa.table(ROWS), part / "part-0.parquet")
            columns = {"card": "string", "purchases": "bigint", "paid": "double"}
            (part / FOLDER).mkdir()
            codec = RowCodec(columns, ("card",))
            pairs = (pair for batch in pa.table(ROWS).to_batches() for pair in codec.pairs(batch))
            (file,) = write_files(part / FOLDER, "", pairs)
            serving = {"format": 1, "key": ["card"], "sql": "", "states": [], "reason": "it is made up"}
            store.publish(
                ViewManifest(
                    view="cards",
                    version=version,
                    digest="d",
                    made_ms=version,
                    kind="full",
                    rows=3,
                    sources={},
                    rules={},
                    columns=columns,
                    lineage={"card": {"reads": ["purchase.card"], "plain": True}},
                    serving={**serving, "files": {file.name: ["", file.rows, file.sha256]}},
                ),
                3,
            )
