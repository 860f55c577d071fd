"""Logging in with a token, what a viewer is shown, and what a page says when the service does not answer."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from samovar.changelog.formats import heartbeat
from samovar.changelog.formats.heartbeat import MemberMetadata, RestoreReport, TaskReport
from samovar.tasks.model.clock import SetClock
from tests.browser.conftest import COMMAND, ROOT, RULES, SERVICE, Site, address_in, opened, started
from tests.browser.waiting import wait_for
from tests.support.small_service import Service


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    """A service whose API asks for tokens, and the token of a viewer. No container runs."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "service.yml").write_text(SERVICE)
    (folder / "rules").mkdir()
    (folder / "rules" / "card-testing.yml").write_text(RULES["card-testing"])
    token = told(folder, "tokens", "add", "service.yml", "anna", "--role", "viewer").split()[0]
    words = folder / "serve.log"
    with started(["serve", "service.yml", "--port", "0"], folder, words):
        yield Site(folder, wait_for(lambda: address_in(words), "the pages to be served", words)), token


def told(folder: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_token_is_asked_for_and_a_viewer_may_look_but_not_publish(
    browser: Browser, guarded: tuple[Site, str]
) -> None:
    site, token = guarded
    with opened(browser, site, "light") as (page, _):
        page.goto("/rules")
        page.get_by_label("Token").fill("smv_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_have_text("Rules")
        expect(page.get_by_role("link", name="New rule")).to_have_count(0)
        page.get_by_role("link", name="card-testing").click()
        expect(page.locator("#verdict")).to_contain_text("No errors")
        expect(page.locator("#publish, #disable")).to_have_count(0)
        assert token not in page.content()
        page.reload()
        expect(page.locator("h1")).to_have_text("card-testing")
        page.get_by_role("button", name="anna").click()
        expect(page.get_by_label("Token")).to_be_visible()


def test_a_page_says_that_no_container_runs(browser: Browser, guarded: tuple[Site, str]) -> None:
    site, token = guarded
    with opened(browser, site, "dark") as (page, _):
        page.goto("/")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#health-chip")).to_have_text("No container runs")


def test_a_restore_and_a_container_that_hangs_are_seen(browser: Browser, guarded: tuple[Site, str]) -> None:
    """A container is in the group, and tells of itself what the test says."""
    site, token = guarded
    service = Service(site.folder / "service.yml")
    with service.container(), service.log() as log, opened(browser, site, "light") as (page, _):

        def tell(tasks: Sequence[TaskReport]) -> None:
            service.clock.pass_ms(int(time.time() * 1000) - service.clock.wall_ms())
            now_ms = service.clock.wall_ms()
            heartbeat.send_heartbeat(
                log,
                "shop",
                MemberMetadata(
                    slot=0,
                    host="h",
                    pid=7,
                    since_ms=now_ms - 60_000,
                    version="1.2",
                    time_ms=now_ms,
                    tasks=tasks,
                    counts={"events": 3},
                ),
            )

        def restoring(done: int) -> None:
            tell(
                [
                    TaskReport(stage="", partition=0, life="running"),
                    TaskReport(stage="", partition=1, life="restoring", restore=RestoreReport(done, 400_000, 50_000.0)),
                ]
            )

        restoring(100_000)
        page.goto("/operations")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#health-chip")).to_have_text("Restoring 1 of 2 tasks")
        page.locator("[data-tab=restore]").click()
        row = page.get_by_role("table", name="Restores").locator("tbody tr")
        expect(row).to_contain_text("100,000 of 400,000")
        expect(row).to_contain_text("25 %")
        expect(row).to_contain_text("6 s left")
        restoring(300_000)
        expect(row.locator("progress")).to_have_js_property("value", 0.75)
        expect(row).to_contain_text("2 s left")
        tell([TaskReport(stage="", partition=partition, life="running") for partition in (0, 1)])
        expect(page.get_by_text("Nothing is being restored")).to_be_visible()
        expect(page.locator("#health-chip")).to_have_text("Running")
        service.clock = SetClock(service.clock.wall_ms() - 60_000)
        with service.log() as log_of_then:
            heartbeat.send_heartbeat(
                log_of_then,
                "shop",
                MemberMetadata(
                    slot=0,
                    host="h",
                    pid=7,
                    since_ms=0,
                    version="1.2",
                    time_ms=0,
                    tasks=[TaskReport(stage="", partition=0, life="running")],
                    counts={},
                ),
            )
        expect(page.locator("#health-chip")).to_have_text("A container is silent")


def test_a_page_says_when_the_service_does_not_answer_and_goes_on_when_it_does(browser: Browser, site: Site) -> None:
    with opened(browser, site, "light") as (page, _):
        page.goto("/")
        expect(page.locator("#health-chip")).to_have_text("Running")
        page.route("**/api/v1/status", lambda route: route.abort())
        expect(page.locator("#health")).to_contain_text("The service does not answer")
        expect(page.locator(".stats.stale .stat")).not_to_have_count(0)
        page.unroute("**/api/v1/status")
        expect(page.locator("#health-chip")).to_have_text("Running")
        expect(page.locator(".stats.stale")).to_have_count(0)


def test_a_page_forgets_what_it_showed_when_its_token_is_removed(browser: Browser, guarded: tuple[Site, str]) -> None:
    site, _ = guarded
    token = told(site.folder, "tokens", "add", "service.yml", "berta", "--role", "viewer").split()[0]
    with opened(browser, site, "light") as (page, _):
        page.goto("/rules")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("link", name="card-testing")).to_be_visible()
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["expires"] > time.time()) == (True, "Strict", True)
        assert cookie["value"] != token
        told(site.folder, "tokens", "remove", "service.yml", "berta")
        expect(page.get_by_label("Token")).to_be_visible()
        expect(page.get_by_role("link", name="card-testing")).to_have_count(0)
        assert page.url.endswith("/rules")
