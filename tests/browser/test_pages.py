"""Every page in a real browser, in both themes: it shows what it should, with nothing on the console."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Browser, Page, expect

from samovar.changelog.log import Append
from samovar.service.config.loading import load_service
from samovar.service.topology.logs import opened as opened_log
from tests.browser.conftest import Site, opened
from tests.browser.contrast import poor_contrast
from tests.browser.waiting import wait_for

PAGES = {
    "/": "Overview",
    "/alerts": "Alerts",
    "/rules": "Rules",
    "/rules/card-testing": "card-testing",
    "/keys": "Keys",
    "/keys?key=c100": "Key c100",
    "/sessions": "Sessions",
    "/lists": "Lists",
    "/views": "Views",
    "/views/spent": "spent",
    "/operations": "Operations",
}


@pytest.fixture(scope="module")
def alert(site: Site) -> str:
    """The id of an alert, with the events of a session and a dead letter next to it."""
    at = site.later(60)
    small = [{"card": "c100", "amount": 1.5, "merchant": f"m{n}", "ts": at + n * 1000} for n in range(3)]
    site.send("purchase", [*small, {"card": "c100", "amount": 640, "merchant": "m9", "ts": site.later(20)}])
    site.send("web", [{"type": "view", "card": "c100", "page": "/", "ts": site.later(1)}])
    found = wait_for(lambda: site.get("/alerts?key=c100&rule=card-testing")["alerts"], "the alert")
    return str(found[0]["id"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_shows_itself_in_both_themes(browser: Browser, site: Site, alert: str, theme: str) -> None:
    with opened(browser, site, theme) as (page, watch):
        for path, heading in {**PAGES, f"/alerts/{alert}": "Card testing, then a large purchase"}.items():
            page.goto(path)
            expect(page.locator("h1")).to_have_text(heading)
            expect(page.locator("main .spinner")).to_have_count(0)
            expect(page.locator("main .state.bad")).to_have_count(0)
            assert poor_contrast(page) == [], path
        assert watch.faults == []
        assert [url for url in watch.outside if not url.startswith(site.address)] == []


def test_the_switch_changes_the_theme_and_is_remembered(page: Page) -> None:
    page.goto("/")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)
    expect(page.locator("#theme")).to_contain_text("system")
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_contain_text("light")
    assert page.evaluate(ground) == light
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("t")
    expect(page.locator("#theme")).to_contain_text("dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    expect(page.locator("#theme")).to_contain_text("dark")
    assert page.evaluate(ground) == dark


def test_pages_are_reached_and_rows_opened_by_keyboard_alone(page: Page, alert: str) -> None:
    page.goto("/")
    expect(page.locator("h1")).to_have_text("Overview")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.locator("h1")).to_have_text("Alerts")
    expect(page.locator("main a[data-row]").first).to_be_visible()
    page.keyboard.press("j")
    focused = page.locator("main a[data-row]").first
    expect(focused).to_be_focused()
    assert focused.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator(".crumb")).to_contain_text("Alerts /")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.locator("#find")).to_be_focused()
    page.keyboard.type("c100")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Key c100")


def test_an_alert_shows_each_event_with_its_step_and_takes_a_label(page: Page, alert: str) -> None:
    page.goto(f"/alerts/{alert}")
    expect(page.locator(".timeline .mark:not(.other)")).to_have_count(4)
    rows = page.locator("table[class=data] tbody tr")
    expect(rows.filter(has_text="probe")).to_have_count(3)
    expect(rows.filter(has_text="big")).to_have_count(1)
    expect(rows.filter(has_text="big").locator(".mattered")).to_contain_text(["amount 640"])
    page.locator(".timeline .mark").last.click()
    expect(page.locator("tr.chosen")).to_have_count(1)
    page.get_by_role("button", name="Confirmed").click()
    expect(page.locator(".toast")).to_contain_text("confirmed")
    expect(page.locator(".facts .label")).to_have_text("Confirmed")
    page.goto("/alerts?label=confirmed")
    expect(page.locator("main a[data-row]")).to_have_count(1)
    expect(page.locator("[aria-label='Precision by rule'] tr").filter(has_text="card-testing").first).to_contain_text(
        "100 %"
    )


def test_filters_stand_in_the_address_and_say_when_nothing_fits(page: Page, alert: str) -> None:
    page.goto("/alerts")
    page.get_by_label("Rule", exact=True).select_option("card-testing")
    expect(page).to_have_url(f"{page.url.split('/alerts')[0]}/alerts?rule=card-testing")
    expect(page.locator("main a[data-row]").first).to_be_visible()
    page.get_by_label("Key", exact=True).fill("nobody")
    page.get_by_label("Key", exact=True).press("Enter")
    expect(page.locator("main .state").first).to_contain_text("No alert fits these filters")
    page.go_back()
    expect(page.locator("main a[data-row]").first).to_be_visible()


def test_a_key_says_what_it_waits_for_and_why_a_rule_did_not_fire(page: Page, site: Site) -> None:
    at = site.later(60)
    site.send("purchase", [{"card": "c200", "amount": 1, "merchant": "m1", "ts": at + n * 1000} for n in range(3)])
    wait_for(lambda: '"big"' in json.dumps(site.get("/keys/c200")["held"]), "a partial match that waits for `big`")
    page.goto("/keys?key=c200")
    partial = page.locator(".partial").filter(has_text="card-testing")
    expect(partial.first).to_contain_text("waits for")
    expect(partial.locator(".step-chip.waits").filter(has_text="big")).to_have_count(1)
    page.locator("#why-rule").select_option("card-testing")
    expect(page.locator("#why")).to_contain_text("probe")
    expect(page.locator("#why tbody tr")).to_have_count(3)


def test_a_keys_events_go_further_back(page: Page, site: Site) -> None:
    at = site.later(60)
    site.send("purchase", [{"card": "c250", "amount": 9, "merchant": "m1", "ts": at + n} for n in range(230)])
    page.goto("/keys?key=c250")
    events = page.get_by_role("region", name="Events", exact=True)
    expect(events).to_contain_text("200 events, looked back to")
    page.locator("#further").click()
    expect(page.locator(".toast")).to_contain_text("30 older events found")
    expect(events).to_contain_text("230 events")
    expect(page.locator("#further")).to_have_count(0)


def test_a_funnel_is_made_by_the_tags_of_rules(page: Page, site: Site) -> None:
    at = site.later(60)
    amounts = (1, 1, 9, 20, 900)
    events = [{"card": "c270", "amount": each, "merchant": "m500", "ts": at + n} for n, each in enumerate(amounts)]
    site.send("purchase", events)
    wait_for(lambda: len(site.get("/alerts?key=c270")["alerts"]) == 8, "alerts of all steps")
    page.goto("/sessions")
    shown = (r"Visits\s*5", r"Several pages\s*3\s*60\s% of visits", r"Paid\s*1\s*20\s% of visits")
    expect(page.locator(".funnel li")).to_have_text([re.compile(each) for each in shown])


def test_a_list_is_changed_with_its_plan_in_sight(page: Page, site: Site) -> None:
    page.goto("/lists")
    expect(page.get_by_role("region", name="The list watched")).to_contain_text("Rules that compare with it: watched")
    page.locator("#add-items").click()
    page.get_by_label("Items, one per line").last.fill("m79\n\n m80 \nm79")
    expect(page.locator("#list-plan")).to_contain_text("2 items added, then it has 4")
    page.get_by_label("Note").last.fill("seen on Monday")
    page.locator("#do-list").click()
    expect(page.locator("#items button")).to_have_text(["m77", "m78", "m79", "m80"])
    page.locator("#items button").first.click()
    page.locator("#remove-items").click()
    expect(page.locator("#list-plan")).to_contain_text("1 item removed, then it has 3")
    page.locator("#do-list").click()
    expect(page.locator("#items button")).to_have_text(["m78", "m79", "m80"])
    rows = page.get_by_role("region", name="Changes of the list").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.last).to_contain_text("+ m79, m80")
    expect(rows.last).to_contain_text("seen on Monday")
    site.send("purchase", [{"card": "c260", "amount": 3, "merchant": "m80", "ts": site.later(60)}])
    wait_for(lambda: site.get("/alerts?key=c260&rule=watched")["alerts"], "an alert by the new item")


def test_a_views_rows_are_picked_and_an_earlier_version_is_shown_again(page: Page) -> None:
    page.goto("/views")
    page.locator("main a[data-row]").first.click()
    expect(page.locator("#rows tbody tr")).to_have_count(1)
    page.get_by_role("tab", name="Versions").click()
    page.get_by_role("button", name="Show this one").click()
    page.locator("#do-back").click()
    expect(page.locator(".toast")).to_contain_text("Readers see version 1")
    expect(page.locator("#rows tbody tr")).to_have_count(3)
    page.get_by_role("button", name="paid").click()
    expect(page.locator("#rows tbody tr").first).to_contain_text("10.5")
    page.locator("#add-condition").click()
    page.get_by_label("Column").select_option("purchases")
    page.get_by_label("Compare").select_option(">=")
    page.get_by_label("Value").fill("2")
    page.locator("#ask").click()
    expect(page.locator("#rows tbody tr")).to_have_count(2)
    page.get_by_role("tab", name="How it is made").click()
    expect(page.locator(".sql")).to_contain_text("group by card")


def test_a_storm_stands_on_the_overview_and_is_no_alert_to_judge(page: Page, site: Site) -> None:
    at = site.later(60)
    site.send("purchase", [{"card": "c270", "amount": 9, "merchant": "m66", "ts": at + n} for n in range(4)])
    page.goto("/")
    expect(page.locator(".note.bad")).to_contain_text("noisy passes its alert rate: 3 alerts were kept back")
    page.goto("/alerts?rule=noisy")
    row = page.locator("main tbody tr").filter(has_text="storm")
    expect(row).to_contain_text("noisy passed 1 alert in")
    row.locator("a[data-row]").click()
    expect(page.locator("h1")).to_have_text("noisy passed its alert rate")
    expect(page.get_by_role("button", name="Confirmed")).to_have_count(0)
    page.goto("/rules")
    expect(page.locator("main tbody tr").filter(has_text="noisy")).to_contain_text("3 kept back")


def test_a_dead_letter_is_shown_with_its_reason_and_redriven(page: Page, site: Site) -> None:
    settings = load_service(site.folder / "service.yml")
    with opened_log(settings) as log:
        log.append([Append(topic="purchase", records=[(b"c1", b"no json")])])
    wait_for(lambda: site.get("/dead-letters")["total"], "the dead letter")
    page.goto("/operations")
    page.get_by_role("tab", name="Dead letters").click()
    row = page.locator("main tbody tr").filter(has_text="no json")
    expect(row).to_contain_text("purchase/")
    row.get_by_role("checkbox").check()
    page.locator("#redrive").click()
    expect(page.locator("dialog")).to_contain_text("1 dead letter will go back: 1 to purchase")
    page.locator("#do-redrive").click()
    expect(page.locator(".toast")).to_contain_text("1 dead letter redriven")
    expect(page.locator("main tbody tr").filter(has_text="redriven").first).to_be_visible()
    page.get_by_role("tab", name="Dead letters").press("ArrowRight")
    expect(page.get_by_role("tab", name="Late events")).to_be_focused()


def test_a_page_that_is_not_there_and_an_unknown_alert_say_what_to_do(browser: Browser, site: Site) -> None:
    with opened(browser, site, "light") as (page, _):
        page.goto("/nowhere")
        expect(page.locator(".state.bad")).to_contain_text("There is no such page")
        page.goto("/alerts/0123456789abcdef")
        expect(page.locator(".state.bad")).to_be_visible()
        expect(page.get_by_role("link", name="All alerts")).to_be_visible()
