"""Pages and marked fields: who may see them reads them on the page, and in no address and no title; others nowhere."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Site, Watch, opened
from tests.support.marked_service import Planted, planted_site


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, dict[str, str], Planted]]:
    planted, folder = Planted("pages"), tmp_path_factory.mktemp("marked") / "s"
    with planted_site(folder, planted, int(time.time() * 1000) - 3_600_000) as (served, tokens):
        yield Site(folder, str(served.client.base_url).rstrip("/")), tokens, planted


def log_in(page: Page, token: str) -> None:
    page.goto("/")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_label("Token")).to_have_count(0)  # leaving the form too early ends the login


def walk(page: Page) -> Iterator[str]:
    """The pages as somebody goes through them, each when it is whole: what it shows."""
    for path in ("/", "/alerts", "/alerts?rule=testing", "/keys", "/sessions", "/lists", "/views/known", "/operations"):
        page.goto(path)
        expect(page.locator("h1, .brand").first).to_be_visible()
        expect(page.locator(".spinner")).to_have_count(0)
        yield page.content()
    page.goto("/alerts?rule=testing")
    page.locator("tbody tr a[href^='/alerts/']").first.click()
    expect(page.locator("a[href^='/keys?key=']").first).to_be_visible()
    yield page.content()
    page.locator("a[href^='/keys?key=']").first.click()
    expect(page.get_by_text("As a list, newest first")).to_be_visible()
    yield page.content()


def leaks(planted: Planted, texts: list[str]) -> list[str]:
    return [text for text in texts if any(piece in unquote(text).lower() for piece in planted.pieces())]


def addresses(page: Page, watch: Watch) -> list[str]:
    """All that went into a history or a log: what was asked for, where the page was, and what it was called."""
    frames = [page.url, page.title()]
    return [*watch.outside, *frames]


def test_a_viewers_pages_have_no_piece_of_a_marked_value(
    browser: Browser, marked: tuple[Site, dict[str, str], Planted]
) -> None:
    site, tokens, planted = marked
    with opened(browser, site, "light") as (page, watch):
        log_in(page, tokens["viewer"])
        for content in walk(page):
            assert not leaks(planted, [content, *addresses(page, watch)])
        page.get_by_label("Look a key up").fill(planted.text("a"))
        page.get_by_label("Look a key up").press("Enter")
        expect(page.get_by_text("no key of this name").first).to_be_visible()
        assert not leaks(planted, addresses(page, watch))
        assert [fault for fault in watch.faults if "403" not in fault and "401" not in fault] == []


def test_an_operator_reads_keys_on_the_page_and_not_in_addresses_or_titles(
    browser: Browser, marked: tuple[Site, dict[str, str], Planted]
) -> None:
    site, tokens, planted = marked
    with opened(browser, site, "light") as (page, watch):
        log_in(page, tokens["operator"])
        shown = ""
        for content in walk(page):
            shown += content
            assert not leaks(planted, addresses(page, watch))
        assert [card for card in "abc" if planted.text(card) not in shown] == []
        for place in ("Look a key up", "Key"):
            page.goto("/alerts" if place == "Key" else "/")
            page.get_by_label(place, exact=True).fill(planted.text("b"))
            page.get_by_label(place, exact=True).press("Enter")
            expect(page).to_have_url(re.compile("key=pii"))
            assert not leaks(planted, addresses(page, watch))
        page.goto(f"/keys?key={planted.text('c')}")  # by hand: it does not stay
        expect(page).to_have_url(re.compile("key=pii"))
        expect(page.get_by_text("As a list, newest first")).to_be_visible()
        expect(page.locator("h1")).to_contain_text(planted.text("c"))
