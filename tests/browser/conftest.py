"""One service on the embedded log, its pages, and one browser, for all tests of this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Response, ViewportSize, expect, sync_playwright

from samovar.service.config.loading import load_service
from samovar.service.views.store import ViewManifest, ViewStore
from tests.browser.chromium import ADVICE, FLAGS, find_chromium
from tests.browser.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-c", "from samovar.service.cli.main import main; main()"]
SIZE = ViewportSize(width=1440, height=900)
PATIENCE_MS = 30_000

SERVICE = """
service: shop
streams:
  purchase:
    key: card
    schema: {card: string, amount: double, merchant: string, country: string}
    slack: 0s
    idle: 500ms
    partitions: 2
  web:
    key: card
    type: type
    schema:
      view: {card: string, page: string}
      pay: {card: string, amount: double}
    slack: 0s
    idle: 500ms
rules: rules
storm: {alerts: 1000, per: 1h, rules: {noisy: {alerts: 1, per: 1h}}}
"""

VIEW = """view: spent
title: What every card spent
sql: select card, count(*) as purchases, sum(amount) as paid from purchase group by card
key: card
"""

RULES = {
    "card-testing": """
rule: card-testing
title: Card testing, then a large purchase
severity: high
match: |
  sequence by card with maxspan=10m
    [purchase where amount < 2] as probe with runs=3..
    [purchase where amount > 200] as big
message: "{count(probe)} small ones, then {big.amount} at {big.merchant}"
tests:
  - name: three small ones, then a big one
    events:
      - "+0s purchase {card: c1, amount: 1}"
      - "+5s purchase {card: c1, amount: 1}"
      - "+9s purchase {card: c1, amount: 1}"
      - "+1m purchase {card: c1, amount: 900}"
    expect:
      - {key: {card: c1}, at: "+1m"}
""",
    "watched": """
rule: watched
title: A shop that is watched
severity: low
match: |
  sequence by card with maxspan=0ms
    [purchase where merchant in $watched] as p
lists: {watched: [m77, m78]}
""",
    "noisy": """
rule: noisy
title: Every purchase at one shop
severity: info
match: |
  sequence by card with maxspan=0ms
    [purchase where merchant == "m66"] as p
""",
    "visit": """
rule: visit
title: What one visit was
severity: info
match: |
  session by card with gap=30m [view where true] as view [pay where true] as pay
emit: {pages: distinct(view.page)}
message: "{count(view)} views"
""",
    "opened": """
rule: opened
title: Any step of a purchase
severity: info
tags: [web, "funnel:1:Visits", "funnel:2:Several pages"]
match: sequence by card with maxspan=0ms [purchase where merchant == "m500"] as p
""",
    "left": """
rule: left
title: Left after one page
severity: info
tags: ["funnel:-2"]
match: sequence by card with maxspan=0ms [purchase where merchant == "m500" and amount < 2] as p
""",
    "paid": """
rule: paid
title: Paid
severity: info
tags: ["funnel:10:Paid", "funnel:no step", "detects:funnel:1:none"]
match: sequence by card with maxspan=0ms [purchase where merchant == "m500" and amount > 100] as p
""",
}


@dataclass
class Site:
    """A service that runs, and where its pages are. `send` is answered when the events are durable."""

    folder: Path
    address: str
    clock_ms: int = 1_790_000_000_000

    def send(self, stream: str, events: Sequence[dict[str, Any]]) -> None:
        lines = "\n".join(json.dumps(event) for event in events).encode()
        headers = {"Content-Type": "application/x-ndjson", "Origin": self.address}
        asked = urllib.request.Request(f"{self.address}/api/v1/streams/{stream}/events", lines, headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert json.load(answer)["written"] == len(events)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}/api/v1{path}", timeout=30) as answer:
            return json.load(answer)

    def later(self, seconds: float) -> int:
        """A moment of event time after all that were asked for before."""
        self.clock_ms += int(seconds * 1000)
        return self.clock_ms


@contextmanager
def started(arguments: Sequence[str], folder: Path, words: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with words.open("wb") as said:
        process = subprocess.Popen([*COMMAND, *arguments], cwd=folder, stderr=said, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def address_in(words: Path) -> str | None:
    found = [word for word in words.read_text("utf-8").split() if word.startswith("http://")]
    return found[0].rstrip("/") if found else None


def publish_view(folder: Path, rows: dict[str, list[Any]]) -> None:
    """A version of the view, as Spark would leave it."""
    store = ViewStore(load_service(folder / "service.yml").views.store, "spent")
    with store.writing():
        version = store.next_version()
        part = store.being_made(version)
        part.mkdir()
        pq.write_table(pa.table(rows), part / "part-0.parquet")
        kinds = {"card": "string", "purchases": "bigint", "paid": "double"}
        made_ms, count = 1_790_000_000_000 + version, len(rows["card"])
        store.publish(
            ViewManifest(
                view="spent",
                version=version,
                digest="d",
                made_ms=made_ms,
                kind="full",
                rows=count,
                sources={},
                rules={},
                columns=kinds,
            ),
            3,
        )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "service.yml").write_text(SERVICE)
    (folder / "rules").mkdir()
    for name, text in RULES.items():
        (folder / "rules" / f"{name}.yml").write_text(text)
    (folder / "views").mkdir()
    (folder / "views" / "spent.yml").write_text(VIEW)
    publish_view(folder, {"card": ["c1", "c2", "c3"], "purchases": [3, 1, 2], "paid": [10.5, 900.0, None]})
    publish_view(folder, {"card": ["c2"], "purchases": [1], "paid": [900.0]})
    served = folder / "serve.log"
    with ExitStack() as stack:
        stack.enter_context(started(["run", "service.yml"], folder, folder / "run.log"))
        stack.enter_context(started(["serve", "service.yml", "--port", "0"], folder, served))
        address = wait_for(lambda: address_in(served), "the pages to be served", served)
        site = Site(folder, address)
        wait_for(lambda: site.get("/status")["running"], "all tasks to run", folder / "run.log")
        yield site


# ---------------------------------------------------------------- the browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        pytest.fail(f"no chromium on this machine. {ADVICE}", pytrace=False)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Watch:
    """What went wrong in a page: words on its console, faults, answers that say no. A test ends with none."""

    faults: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    allowed: set[str] = field(default_factory=set)

    def told(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text} ({message.location.get('url')})")

    def answered(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status} {response.url}")


@contextmanager
def opened(browser: Browser, site: Site, theme: str) -> Iterator[tuple[Page, Watch]]:
    watch = Watch()
    context = browser.new_context(
        base_url=site.address, viewport=SIZE, color_scheme="dark" if theme == "dark" else "light"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("console", watch.told)
    page.on("pageerror", lambda fault: watch.faults.append(f"fault: {fault}"))
    page.on("response", watch.answered)
    page.on("request", lambda asked: watch.outside.append(asked.url))
    try:
        yield page, watch
    finally:
        context.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """A page on which nothing may go wrong, and which asks nobody but the service."""
    with opened(browser, site, "light") as (page, watch):
        yield page
        assert watch.faults == []
        assert [url for url in watch.outside if not url.startswith((site.address, "data:", "blob:"))] == []
