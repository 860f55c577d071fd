"""A rule author's story: write a rule with an error, see it marked, repair it, test it, and see an alert come live."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Site, opened
from tests.browser.waiting import wait_for

BUNDLE = Path(__file__).resolve().parent.parent.parent / "service" / "http" / "web" / "static" / "_editor.js"

RULE = """rule: twice-abroad
title: Two purchases abroad
severity: medium
match: |
  sequence by card with maxspan=10m
    [purchase where amuont > 100] as first
    [purchase where amount > 100 and country != first.country] as second
message: "{first.country}, then {second.country}"
tests:
  - name: two countries
    events:
      - "+0s purchase {card: c1, amount: 150, country: US}"
      - "+5s purchase {card: c1, amount: 150, country: SG}"
    expect:
      - {key: {card: c1}, at: "+5s"}
  - name: one country
    events:
      - "+0s purchase {card: c1, amount: 150, country: US}"
      - "+5s purchase {card: c1, amount: 150, country: US}"
    expect: []
"""


@pytest.fixture
def bundled() -> None:
    if not BUNDLE.exists():
        pytest.fail("the editor was not bundled: `make pages` says why (is the npm registry reachable?)", pytrace=False)


# As when a reader pastes: the editor's own way for texts of several lines.
PASTE = """
(field, text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  field.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
}
"""


def write(page: Page, text: str) -> None:
    """Put a text in the place of all that stands in the editor."""
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.locator(".cm-content").evaluate(PASTE, text)


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_rule_is_written_repaired_and_tested(browser: Browser, site: Site, theme: str) -> None:
    with opened(browser, site, theme) as (page, watch):
        page.goto("/rules")
        page.get_by_role("link", name="New rule").click()
        expect(page.locator(".cm-content")).to_contain_text("sequence by card")
        write(page, RULE)

        # The error stands where it is, and the finding says what was meant.
        expect(page.locator(".cm-lintRange-error")).to_have_text("amuont")
        expect(page.locator(".finding-error")).to_contain_text("amount")
        expect(page.locator("#verdict")).to_have_text("1 error")
        expect(page.locator("#publish")).to_be_disabled()
        page.get_by_role("tab", name="Tests").click()
        expect(page.locator("#tests")).to_contain_text("The rule has errors")

        write(page, RULE.replace("amuont", "amount"))
        expect(page.locator("#verdict")).to_contain_text("No errors")
        expect(page.locator(".cm-lintRange-error")).to_have_count(0)
        expect(page.locator("#publish")).to_be_enabled()
        page.locator(".cm-content").press("Control+Enter")
        page.locator("#run-tests").click()
        expect(page.locator("#tests-sum")).to_have_text("2 tests passed")
        page.get_by_role("tab", name="Picture").click()
        expect(page.locator(".automaton")).to_contain_text("second")
        assert watch.faults == []


@pytest.mark.usefixtures("bundled")
def test_a_failing_test_says_what_was_expected_and_what_was_found(page: Page) -> None:
    page.goto("/rules/new")
    expect(page.locator(".cm-content")).to_contain_text("sequence by card")
    write(page, RULE.replace("amuont", "amount").replace('at: "+5s"', 'at: "+9s"'))
    expect(page.locator("#verdict")).to_contain_text("No errors")
    page.get_by_role("tab", name="Tests").click()
    expect(page.locator("#tests-sum")).to_have_text("1 of 2 tests failed")
    expect(page.locator("#tests .fail .difference")).to_contain_text("+9s")


@pytest.mark.usefixtures("bundled")
def test_fields_and_functions_are_offered_as_one_types(page: Page) -> None:
    page.goto("/rules/new")
    expect(page.locator(".cm-content")).to_contain_text("sequence by card")
    write(page, "match: |\n  sequence by card with maxspan=1m\n    [purchase where am")
    page.keyboard.press("Control+Space")
    page.locator(".cm-tooltip-autocomplete li").filter(has_text="amount").click()
    expect(page.locator(".cm-content")).to_contain_text("[purchase where amount")
    page.keyboard.type(" > start")
    expect(page.locator(".cm-tooltip-autocomplete")).to_contain_text("starts_with")
    page.keyboard.press("Escape")


@pytest.mark.usefixtures("bundled")
def test_a_rule_is_tried_on_recent_traffic(page: Page, site: Site) -> None:
    at = site.later(30)
    spent = [
        {"card": "c300", "amount": 150, "country": country, "ts": at + n * 1000}
        for n, country in enumerate(("US", "SG"))
    ]
    site.send("purchase", spent)
    page.goto("/rules/new")
    expect(page.locator(".cm-content")).to_contain_text("sequence by card")
    write(page, RULE.replace("amuont", "amount"))
    expect(page.locator("#verdict")).to_contain_text("No errors")
    page.get_by_role("tab", name="Try").click()
    page.locator("#run-try").click()
    expect(page.locator("#tried details").filter(has_text="c300")).to_contain_text("US, then SG")


def test_an_alert_arrives_while_one_looks_and_leads_to_its_key(page: Page, site: Site) -> None:
    card_testing(site, "c399")
    wait_for(lambda: site.get("/alerts?key=c399")["alerts"], "an alert before")
    page.goto("/alerts")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("tr").filter(has_text="c399")).to_have_count(1)
    card_testing(site, "c400")
    row = page.locator("tr").filter(has_text="c400")
    expect(row).to_contain_text("3 small ones, then 900 at m2")
    row.locator("a[data-row]").click()
    expect(page.locator(".timeline .mark:not(.other)")).to_have_count(4)
    page.locator(".facts").get_by_role("link", name="c400").click()
    expect(page.locator("h1")).to_have_text("Key c400")
    expect(page.locator(".timeline .mark.plain")).to_have_count(4)
    expect(page.locator(".timeline .mark.alert")).to_have_count(1)


def test_without_the_bundle_a_plain_field_marks_the_same_errors(browser: Browser, site: Site) -> None:
    with opened(browser, site, "light") as (page, _):
        page.route("**/_editor.js", lambda route: route.fulfill(status=404, body="not bundled"))
        page.goto("/rules/new")
        expect(page.locator(".note.warn")).to_contain_text("make pages")
        page.get_by_role("textbox", name="Rule text").fill(RULE)
        expect(page.locator(".plain-lines .error")).to_have_text("6")
        expect(page.locator(".finding-error")).to_contain_text("amount")
        page.get_by_role("textbox", name="Rule text").fill(RULE.replace("amuont", "amount"))
        expect(page.locator("#verdict")).to_contain_text("No errors")
        expect(page.locator(".plain-lines .error")).to_have_count(0)


@pytest.mark.usefixtures("bundled")
def test_a_rule_is_published_raises_its_first_alert_live_and_is_rolled_back(page: Page, site: Site) -> None:
    page.goto("/rules/new")
    expect(page.locator(".cm-content")).to_contain_text("sequence by card")
    write(page, RULE.replace("amuont", "amount"))
    expect(page.locator("#verdict")).to_contain_text("No errors")
    page.locator("#publish").click()
    expect(page.locator("#state-plan")).to_contain_text("the rule is new")
    page.get_by_label("Note").fill("two countries in ten minutes")
    page.locator("#do-publish").click()
    expect(page.locator(".toast")).to_contain_text("Published twice-abroad as number 1")
    expect(page.locator("h1")).to_have_text("twice-abroad")
    wait_for(lambda: took_effect(site, "twice-abroad"), "the rule to take effect", site.folder / "run.log")

    page.goto("/alerts")
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("main .spinner")).to_have_count(0)
    site.send("purchase", [abroad("US", site.later(30)), abroad("SG", site.later(5))])
    row = page.locator("tr").filter(has_text="twice-abroad")
    expect(row).to_contain_text("US, then SG")
    row.locator("a[data-row]").click()
    expect(page.locator(".timeline .mark:not(.other)")).to_have_count(2)
    expect(page.locator(".facts")).to_contain_text("current")
    page.locator(".facts").get_by_role("link", name="c500").click()
    expect(page.locator("h1")).to_have_text("Key c500")
    expect(page.locator(".timeline .mark.alert")).to_have_count(1)

    # A second number, whose plan says what is lost; then back to the first.
    page.goto("/rules/twice-abroad")
    expect(page.locator("#verdict")).to_contain_text("No errors")
    write(page, RULE.replace("amuont > 100", "amount > 500"))
    expect(page.locator("#publish")).to_be_enabled()
    page.locator("#publish").click()
    expect(page.locator(".diff .added")).to_contain_text(["amount > 500"])
    expect(page.locator("#state-plan")).to_contain_text("Dropped")
    page.locator("#do-publish").click()
    expect(page.locator(".toast")).to_contain_text("as number 2")
    expect(page.locator("#publish")).to_be_disabled()
    page.get_by_role("tab", name="History").click()
    expect(page.locator("#history li")).to_have_count(2)
    page.get_by_role("button", name="Compare with 1").click()
    expect(page.locator("#history .diff .gone")).to_contain_text(["amount > 100"])
    page.get_by_role("button", name="Roll back to this").click()
    page.locator("#do-rollback").click()
    expect(page.locator(".cm-content")).to_contain_text("amount > 100] as first")
    page.locator("#disable").click()
    page.locator("#do-disable").click()
    expect(page.locator("#enable")).to_be_visible()


def card_testing(site: Site, card: str) -> None:
    """What the rule card-testing of the site is for."""
    at = site.later(60)
    small = [{"card": card, "amount": 1, "merchant": "m1", "ts": at + n * 1000} for n in range(3)]
    site.send("purchase", [*small, {"card": card, "amount": 900, "merchant": "m2", "ts": site.later(10)}])


def abroad(country: str, at: int) -> dict[str, object]:
    return {"card": "c500", "amount": 150, "country": country, "merchant": "m1", "ts": at}


def took_effect(site: Site, rule: str) -> bool:
    return bool(site.get(f"/rules/{rule}/history")["entries"][-1].get("took_effect"))


@pytest.mark.usefixtures("bundled")
def test_a_backtest_is_held_against_what_was_raised(page: Page, site: Site) -> None:
    card_testing(site, "c600")
    wait_for(lambda: site.get("/alerts?key=c600")["alerts"], "the alert")
    page.goto("/rules/card-testing")
    expect(page.locator("#verdict")).to_contain_text("No errors")
    page.get_by_role("tab", name="Backtest").click()
    page.locator("#run-backtest").click()
    expect(page.locator("#backtest .stats")).to_contain_text("Found")
    expect(page.locator("#backtest .stat").filter(has_text="New")).to_contain_text("0")
    expect(page.locator("#backtest svg .column")).not_to_have_count(0)


def test_a_preview_follows_what_is_typed_and_nothing_moves(browser: Browser, site: Site) -> None:
    card_testing(site, "c601")
    wait_for(lambda: site.get("/alerts?key=c601")["alerts"], "the alert")
    with opened(browser, site, "light") as (page, watch):
        page.goto("/rules/card-testing")
        expect(page.locator("#verdict")).to_contain_text("No errors")
        text = site.get("/rules/card-testing")["text"]
        page.get_by_role("tab", name="Backtest").click()
        found, told, below = (
            page.locator("#preview .stats"),
            page.locator("#preview .preview-told"),
            page.locator("#run-backtest"),
        )
        expect(found).to_contain_text("It finds")
        expect(found).to_contain_text("exactly")  # so few events are all looked at
        expect(found).not_to_contain_text("0 alerts")
        expect(told).to_contain_text("Of all keys")
        place = below.bounding_box()
        write(page, text.replace("amount > 200", "amount > 999999"))
        expect(found).to_contain_text("0 alerts")
        expect(page.locator("#preview")).to_have_attribute("aria-busy", "false")
        write(page, "rule: broken")
        expect(told).to_contain_text("this is of the text before")
        expect(found).to_contain_text("0 alerts")
        page.route("**/rules/preview", lambda route: route.fulfill(status=503, body='{"title": "The log is away"}'))
        write(page, text)
        expect(told).to_contain_text("No newer preview: The log is away.")
        assert below.bounding_box() == place
        assert [fault for fault in watch.faults if "/rules/preview" not in fault] == []
