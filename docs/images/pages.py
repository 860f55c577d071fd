"""Makes page-*.png: every page in both themes, of the two services of examples/ with generated traffic.

    .venv/bin/python docs/images/pages.py

Takes about three minutes. Needs Spark (`make spark`), chromium (tests/browser/chromium.py installs it) and the bundled
editor (`make pages`).
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.chromium import FLAGS, find_chromium  # noqa: E402 # found only once the path is set

IMAGES = Path(__file__).resolve().parent
SIZE = ViewportSize(width=1280, height=800)
COMMAND = [sys.executable, "-c", "from samovar.service.cli.main import main; main()"]
SERVICES = ("fraud", "sessions")
PORTS: dict[str, int] = {}
RATE = "40"
CAUGHT_UP_S = 300


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[None]:
    process = subprocess.Popen([*COMMAND, *arguments], cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def ask(service: str, path: str, body: Any = None, method: str | None = None) -> Any:
    address = f"http://127.0.0.1:{PORTS[service]}"
    sent = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Origin": address}
    asked = urllib.request.Request(f"{address}/api/v1{path}", sent, headers, method=method)  # noqa: S310 # this machine
    with urllib.request.urlopen(asked, timeout=120) as answer:  # noqa: S310 # this machine
        return json.load(answer)


def wait_until_it_is_caught_up(service: str) -> None:
    end = time.monotonic() + CAUGHT_UP_S
    while time.monotonic() < end:
        try:
            status = ask(service, "/status")
            if status["running"] and status["counts"]["events"] > 1000 and status["lag"] < 500:
                return
        except OSError:
            pass
        time.sleep(1)
    raise SystemExit(f"{service} is not caught up after {CAUGHT_UP_S} s")


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
    """On Spark, twice, so that there is a version before."""
    for _ in range(2):
        subprocess.run([*COMMAND, "views", "rebuild", "service.yml"], cwd=folder, check=True, capture_output=True)


def shots(key: str, alert: str) -> Sequence[tuple[str, str, str, Sequence[str]]]:
    """The name of each picture, its service and path, and what is clicked before it is taken."""
    return (
        ("overview", "fraud", "/", ()),
        ("alerts", "fraud", "/alerts", ()),
        ("alert", "fraud", f"/alerts/{alert}", ()),
        ("rules", "fraud", "/rules", ()),
        ("rule", "fraud", "/rules/card-testing", ()),
        ("rule-tests", "fraud", "/rules/account-takeover", ("[data-tab=tests]",)),
        ("rule-backtest", "fraud", "/rules/impossible-travel", ("[data-tab=backtest]", "#run-backtest")),
        ("lists", "fraud", "/lists", ()),
        ("keys", "fraud", f"/keys?key={key}", ()),
        ("sessions", "sessions", "/sessions", ()),
        ("views", "fraud", "/views", ()),
        ("view", "fraud", "/views/top-merchants", ()),
        ("operations", "fraud", "/operations", ()),
    )


def shoot(browser: Browser, theme: str, key: str, alert: str) -> None:
    context = browser.new_context(viewport=SIZE, color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    for name, service, path, clicks in shots(key, alert):
        page.goto(f"http://127.0.0.1:{PORTS[service]}{path}")
        settle(page)
        for selector in clicks:
            page.locator(selector).click()
            settle(page)
        page.screenshot(path=IMAGES / f"page-{name}-{theme}.png")
        sys.stderr.write(f"page-{name}-{theme}.png\n")
    context.close()


def settle(page: Page) -> None:
    page.wait_for_selector("#health-chip", timeout=60_000)
    page.wait_for_function("() => !document.querySelector('main .spinner, #backtest progress')", timeout=60_000)
    page.wait_for_timeout(700)  # charts fit themselves to their place


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    PORTS.update({name: free_port() for name in SERVICES})
    with tempfile.TemporaryDirectory(prefix="samovar-pages-") as folder, ExitStack() as stack:
        for name, port in PORTS.items():
            place = Path(folder, name)
            left = shutil.ignore_patterns(".samovar")
            shutil.copytree(ROOT / "examples" / name, place, ignore=left)
            stack.enter_context(running(place, "run", "service.yml"))
            stack.enter_context(running(place, "serve", "service.yml", "--port", str(port)))
            stack.enter_context(running(place, "traffic", "service.yml", "--rate", RATE))
        for name in PORTS:
            wait_until_it_is_caught_up(name)
        judge()
        change_a_list()
        make_views(Path(folder, "fraud"))
        alert = alert_of("card-testing")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
            for theme in ("light", "dark"):
                shoot(browser, theme, alert["key_text"], alert["id"])
            browser.close()


if __name__ == "__main__":
    main()
