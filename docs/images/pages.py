"""Makes page-*.png: every page in both themes, of `samovar demo` at its usual rate, 20,000 events per second.

    .venv/bin/python docs/images/pages.py [FOLDER [NAME ...]]

Takes about ten minutes on two cores that do nothing else. Needs Spark (`make spark`), chromium
(tests/browser/chromium.py installs it) and the bundled editor (`make pages`). FOLDER is where the pictures go, by
default this one; names (`rule lists`) choose some. Before each picture it waits until the service no longer lags; one
that still lagged after five minutes is taken all the same, and named at the end, with exit code 1. SAMOVAR_RATE=50 is
for a machine that is too small.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import FLAGS, find_chromium  # noqa: E402 # found only once the path is set

IMAGES = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
CHOSEN = sys.argv[2:]
SIZE = ViewportSize(width=1280, height=800)
COMMAND = [sys.executable, "-c", "from samovar.service.cli.main import main; main()"]
SERVICES = ("fraud", "sessions")
RATE = float(os.environ.get("SAMOVAR_RATE", "20000"))
VIEWS_RATE = 100.0  # while Spark needs the processors
CAUGHT_UP_S = 300
SETTLED_MS = 600_000  # a backtest next to 20,000 events per second takes its time
WATCHED_S = 60  # of running without lag, so that charts have something to show
ADDRESSES: dict[str, str] = {}


@contextmanager
def running_demo(folder: Path, rate: float) -> Iterator[None]:
    """The two services, with the addresses of their pages."""
    ADDRESSES.clear()
    told = folder / "demo.txt"
    with told.open("wb") as out:
        command = [*COMMAND, "demo", "--folder", str(folder), "--rate", str(rate), "--http", "18080"]
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
    try:
        while len(ADDRESSES) < len(SERVICES):
            if process.poll() is not None:
                raise SystemExit(told.read_text("utf-8"))
            time.sleep(0.5)
            found = re.findall(r"pages +(http\S+)", told.read_text("utf-8"))
            ADDRESSES.update(zip(SERVICES, found, strict=False))
        yield
    finally:
        process.terminate()
        process.wait(60)


def ask(service: str, path: str, body: Any = None, method: str | None = None) -> Any:
    address = ADDRESSES[service]
    sent = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Origin": address}
    asked = urllib.request.Request(f"{address}/api/v1{path}", sent, headers, method=method)  # noqa: S310 # this machine
    with urllib.request.urlopen(asked, timeout=120) as answer:  # noqa: S310 # this machine
        return json.load(answer)


def is_caught_up(service: str) -> bool:
    """Waits until it is behind by no more than comes in two seconds; False where it still is after some minutes."""
    end, shown = time.monotonic() + CAUGHT_UP_S, time.monotonic()
    lag: int | None = None
    while time.monotonic() < end:
        with suppress(OSError):
            status = ask(service, "/status")
            lag = status["lag"]
            if status["running"] and status["counts"]["events"] > 1000 and status["lag"] < max(500, 2 * RATE):
                return True
        if time.monotonic() - shown > 15:
            shown = time.monotonic()
            sys.stderr.write(f"waiting for {service}, which lags by {lag} events\n")
        time.sleep(1)
    sys.stderr.write(f"{service} still lags by {lag} events after {CAUGHT_UP_S} s\n")
    return False


def wait_until_it_runs(service: str) -> None:
    """The start, which may not fail."""
    if not is_caught_up(service):
        raise SystemExit(f"{service} does not catch up with {RATE:,.0f} events per second: try SAMOVAR_RATE=50")


def alert_of(rule: str) -> dict[str, Any]:
    alerts: list[dict[str, Any]] = ask("fraud", f"/alerts?rule={rule}&limit=1")["alerts"]
    return alerts[0]


def judge() -> None:
    """Some labels, so that precision is to be seen."""
    for rule in ("card-testing", "velocity-sum", "impossible-travel"):
        for at, each in enumerate(ask("fraud", f"/alerts?rule={rule}&limit=5")["alerts"]):
            word = "false_alarm" if at == 2 else "confirmed"
            ask("fraud", f"/alerts/{each['id']}/label", {"label": word, "note": ""}, "PUT")


def change_a_list() -> None:
    ask("fraud", "/lists/billers/add", {"items": ["biller-gas", "biller-rail"], "note": "two more, as of this month"})
    ask("fraud", "/lists/billers/remove", {"items": ["biller-tax"], "note": ""})


def make_views(folder: Path) -> None:
    """On Spark, twice, so that there is a version before. The demo keeps its events for minutes only: where retention
    was quicker than Spark, it is tried again.
    """
    command, made = [*COMMAND, "views", "rebuild", "demo.yml"], 0
    for _ in range(6):
        tried = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        made += not tried.returncode
        if made == 2:
            return
        if tried.returncode and "offset-gone" not in tried.stderr:
            break
    raise SystemExit(tried.stderr)


def shots(key: str, alert: str) -> Sequence[tuple[str, str, str, Sequence[str]]]:
    """The name of each picture, its service and path, and what is clicked before it is taken."""
    return (
        ("overview", "fraud", "/", ()),
        ("alerts", "fraud", "/alerts", ()),
        ("alert", "fraud", f"/alerts/{alert}", ()),
        ("rules", "fraud", "/rules", ()),
        ("rule", "fraud", "/rules/card-testing", ()),
        ("rule-tests", "fraud", "/rules/account-takeover", ("[data-tab=tests]",)),
        ("lists", "fraud", "/lists", ()),
        ("keys", "fraud", f"/keys?key={key}", ()),
        ("sessions", "sessions", "/sessions", ()),
        ("views", "fraud", "/views", ()),
        ("view", "fraud", "/views/top-merchants", ()),
        ("operations", "fraud", "/operations", ()),
        # Last: the service lags for a while after it.
        ("rule-backtest", "fraud", "/rules/impossible-travel", ("[data-tab=backtest]", "#run-backtest")),
    )


def shoot(browser: Browser, theme: str, key: str, alert: str) -> Iterator[str]:
    """Takes the pictures of a theme, and yields the names of those whose service lagged."""
    context = browser.new_context(viewport=SIZE, color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    for name, service, path, clicks in shots(key, alert):
        if CHOSEN and name not in CHOSEN:
            continue
        if not is_caught_up(service):
            yield f"page-{name}-{theme}.png"
        page.goto(f"{ADDRESSES[service]}{path}")
        settle(page)
        for selector in clicks:
            page.locator(selector).click()
            settle(page)
        page.screenshot(path=IMAGES / f"page-{name}-{theme}.png")
        sys.stderr.write(f"page-{name}-{theme}.png\n")
    context.close()


def settle(page: Page) -> None:
    page.wait_for_selector("#health-chip", timeout=SETTLED_MS)
    page.wait_for_function("() => !document.querySelector('main .spinner, #backtest progress')", timeout=SETTLED_MS)
    page.wait_for_timeout(700)  # charts fit themselves to their place


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="samovar-pages-") as name, ExitStack() as stack:
        folder = Path(name)
        for service in SERVICES:
            shutil.copytree(ROOT / "examples" / service, folder / service, ignore=shutil.ignore_patterns(".samovar"))
        with running_demo(folder, VIEWS_RATE):
            wait_until_it_runs("fraud")
            make_views(folder / "fraud")
        stack.enter_context(running_demo(folder, RATE))
        for service in SERVICES:
            wait_until_it_runs(service)
        time.sleep(WATCHED_S)
        judge()
        change_a_list()
        alert = alert_of("card-testing")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
            themes = ("light", "dark")
            lagging = [each for theme in themes for each in shoot(browser, theme, alert["key_text"], alert["id"])]
            browser.close()
    if lagging:
        raise SystemExit(f"taken while the service lagged: {', '.join(lagging)}")


if __name__ == "__main__":
    main()
