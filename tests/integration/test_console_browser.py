"""The console's pages in a real Chromium, beside a group of three replicas under `epochmq up`: how they
look in each width and scheme, what can be done on them, and how the overview shows a failover."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.integration.browser import PATIENCE_MS, missing, started_browser, watched_page
from tests.integration.console_process import Console
from tests.integration.seeded_run import WITH_USERS, produce_dead_letters
from tests.integration.up_run import COMMAND, GroupRun, alive
from tests.support.process import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"missing: {missing()}")
WIDTHS_PX = (400, 900, 1600)
LONG_BODY = "word " * 400 + "unbroken" * 100
CONTRAST_MIN = 4.5
"""Of text to what is behind it (WCAG 2, level AA)."""
CONTRASTS = """
() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => {
    paint.clearRect(0, 0, 1, 1); paint.fillStyle = color; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = rgb(getComputedStyle(one).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("svg, option")) continue;
    const [a, b] = [luminance(rgb(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < MINIMUM) found.push(`${element.outerHTML.slice(0, 100)}: ${ratio.toFixed(2)}`);
  }
  return found;
}
""".replace("MINIMUM", str(CONTRAST_MIN))
REACHABLE = "a[href], button, input:not([type=hidden]), select, summary, [tabindex='0']"


NARROW, MIDDLE, WIDE = WIDTHS_PX
SIGHTS = [
    (WIDE, True),
    *(
        pytest.param(width_px, is_dark, marks=pytest.mark.soak)
        for width_px, is_dark in (
            (NARROW, False),
            (NARROW, True),
            (MIDDLE, False),
            (MIDDLE, True),
            (WIDE, False),
        )
    ),
]
"""Widths and whether the scheme is dark: one in every run of the tests, all in the soak."""
TOKEN = "the-token-of-the-admin"
REPORT = "<!doctype html><title>Audit</title><style>p { color: red }</style><p>two replicas differ</p>"


def write_audit(run: GroupRun) -> None:
    """Leaves the results of an audit in the run's state directory."""
    folder = run.state / "audits" / "20300101-120000"
    folder.mkdir(parents=True)
    summary = {"verdict": "damaged", "findingCounts": {"log.corrupt-record": 2}, "replicas": [{}, {}, {}]}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "report.html").write_text(REPORT)


@dataclass(frozen=True)
class Shown:
    """A run with something on each page, its console, and the paths of its pages."""

    run: GroupRun
    console: Console
    paths: tuple[str, ...]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    run = GroupRun(tmp_path_factory.mktemp("browser"))
    console: Console | None = None
    try:
        run.file.write_text(WITH_USERS)
        run.up()
        run.ok("topic", "create", "sales", "--queues", "2")
        run.ok("topic", "create", "%DLQ%billing", "--queues", "1")
        asyncio.run(produce_dead_letters(run.group()["nameservers"]))
        run.ok("user", "create", "shop", stdin="secret-of-shop")
        run.ok("acl", "create", "shop", "--resource", "Topic:sales", "--action", "Pub")
        write_audit(run)
        sent = run.ok("produce", "sales", LONG_BODY, "--key", "k1", "--property", f"long={'x' * 300}")
        (message_id,) = re.findall(r"\b[0-9A-F]{32}\b", sent)
        run.ok("produce", "sales", stdin="".join(f"order {n}\n" for n in range(30)))
        run.ok("consume", "sales", "--group", "billing", "--count", "20")
        token_file = run.directory / "token"
        token_file.write_text(f"{TOKEN}\n")
        console = Console("--state", str(run.state), "--token-file", str(token_file), "--allow-changes")
        console.client.auth = ("admin", TOKEN)
        wait_until(lambda: "<polyline" in console.page("/brokers"), what="the console has samples")
        paths = (
            "/",
            "/topics",
            "/topics?everything=true",
            "/topic?name=sales",
            f"/message?topic=sales&id={message_id}",
            "/groups",
            "/group?name=billing",
            "/brokers",
            "/broker?name=orders-a",
            "/controllers",
            "/clients",
            "/dead-letters",
            "/dead-letter-group?name=billing",
            "/access",
            "/audits",
            "/about",
        )
        yield Shown(run, console, paths)
    finally:
        if console is not None:
            console.stop()
        run.here("down")


@pytest.mark.parametrize(("width_px", "is_dark"), SIGHTS)
def test_every_page_fits_its_window_and_can_be_read(
    shown: Shown, browser: Browser, width_px: int, is_dark: bool
) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN, width_px=width_px, is_dark=is_dark) as opened:
        for path in shown.paths:
            opened.open(path)
            assert opened.overflow_px() == 0, f"{path} is wider than its window"
            assert opened.page.evaluate(CONTRASTS) == [], path
            assert opened.page.locator("h1").count() == 1, path


def test_the_scheme_follows_the_system(shown: Shown, browser: Browser) -> None:
    colors = []
    for is_dark in (False, True):
        with watched_page(browser, shown.console.url, token=TOKEN, is_dark=is_dark) as opened:
            opened.open("/about")
            colors.append(opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colors[0] != colors[1]


@pytest.mark.parametrize("width_px", [pytest.param(400, marks=pytest.mark.soak), 1600])
def test_the_tab_key_reaches_everything_that_can_be_used(
    shown: Shown, browser: Browser, width_px: int
) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN, width_px=width_px) as opened:
        for path in shown.paths:
            opened.open(path)
            page = opened.page
            if page.locator("#pause").count():
                page.locator("#pause").click()  # so that the overview is not renewed meanwhile
                page.evaluate("document.activeElement.blur()")
            wanted = page.evaluate(
                f"[...document.querySelectorAll(`{REACHABLE}`)].filter((one) => one.checkVisibility())"
                ".map((one, at) => { one.dataset.place = at; return one.outerHTML; })"
            )
            reached = set()
            page.evaluate("document.body.tabIndex = -1; document.body.focus()")
            for _ in range(len(wanted) + 1):
                page.keyboard.press("Tab")
                place, outline = page.evaluate(
                    "[document.activeElement.dataset.place, "
                    "getComputedStyle(document.activeElement).outlineStyle]"
                )
                if place is not None:
                    reached.add(int(place))
                    assert outline != "none", f"{path}: the focus cannot be seen at {wanted[int(place)]}"
            assert [wanted[at] for at in range(len(wanted)) if at not in reached] == [], path


def test_a_page_is_opened_with_the_keyboard_alone(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        opened.open("/about")
        page = opened.page
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to the content")
        page.get_by_role("link", name="Topics", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("Topics")
        page.get_by_label("Name contains").fill("sal")
        page.keyboard.press("Enter")
        page.get_by_role("link", name="sales", exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("sales")


def test_a_message_is_found_by_its_key_and_opened(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/topic?name=sales")
        page.get_by_label("Key").fill("k1")
        page.get_by_role("button", name="Search").click()
        rows = found_rows(page)
        expect(rows).to_have_count(1)
        rows.get_by_role("link").click()
        expect(page.get_by_label("Body as text")).to_have_text(LONG_BODY.strip())
        page.get_by_text("In hexadecimal").click()
        expect(page.get_by_label("Body in hexadecimal")).to_contain_text("77 6f 72 64 20")
        page.get_by_role("link", name="sales").click()
        page.get_by_label("At most").select_option("25")
        page.get_by_role("button", name="Search").click()
        expect(found_rows(page)).to_have_count(25)
        page.locator("select[name=queue]").select_option("orders-a:0")
        page.get_by_label("From offset").fill("3")
        page.get_by_role("button", name="Search").click()
        expect(found_rows(page).first.locator("td").nth(2)).to_have_text("3")
        page.get_by_label("Stored since").fill("1h")
        page.get_by_role("button", name="Search").click()
        expect(page.get_by_role("alert")).to_have_count(0)
        page.get_by_role("link", name="newest messages").click()
        expect(found_rows(page)).to_have_count(10)


def found_rows(page: Page) -> Locator:
    """The rows of the messages that a topic's page shows."""
    return (
        page.locator("section").filter(has=page.get_by_role("heading", name="Messages")).locator("tbody tr")
    )


def test_groups_are_chosen_by_their_names(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/groups")
        page.get_by_label("Name contains").fill("no such group")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("There is no such consumer group.")).to_be_visible()
        page.get_by_label("Name contains").fill("bill")
        page.get_by_label("also those of brokers").check()
        page.get_by_role("button", name="Show").click()
        page.get_by_role("link", name="billing", exact=True).click()
        expect(page.locator("h1")).to_have_text("billing")


def test_a_paused_overview_is_not_renewed_until_it_is_resumed(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        with page.expect_response("**/overview-fragment"):
            pass
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#refreshed")).to_have_text("Paused.")
        page.get_by_role("button", name="Resume").click()
        before = len(asked)
        wait_for_renewal(page)
        assert len(asked) > before


def wait_for_renewal(page: Page) -> None:
    """Returns after the overview was renewed once more."""
    with page.expect_response("**/overview-fragment", timeout=PATIENCE_MS):
        pass


def test_a_group_is_reset_after_its_new_offsets_were_shown(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/group?name=billing")
        page.get_by_label("Continue at").select_option("earliest")
        page.get_by_role("button", name="Reset …").click()
        expect(
            page.get_by_text(re.compile("It reads [1-9][0-9]* messages again and skips 0."))
        ).to_be_visible()
        assert opened.overflow_px() == 0
        page.get_by_role("link", name="Cancel").click()
        expect(page.locator("h1")).to_have_text("billing")
        before = fact(page, "lag").inner_text()

        page.get_by_label("Continue at").select_option("earliest")
        page.get_by_role("button", name="Reset …").click()
        page.get_by_role("button", name="Reset", exact=True).click()
        expect(page.get_by_text("continues at the new offsets")).to_be_visible()
        assert int(fact(page, "lag").inner_text()) > int(before)


def test_a_dead_letter_is_opened_and_sent_again(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/dead-letters")
        page.get_by_role("link", name="billing").click()
        expect(page.locator("tbody tr")).to_have_count(3)
        page.locator("tbody tr").first.get_by_role("link").click()
        expect(page.get_by_label("Body as text")).to_have_text("dead 0")
        opened.open("/dead-letter-group?name=billing")
        page.locator("select[name=to]").select_option("topic")
        page.get_by_role("button", name="Send again …").click()
        expect(page.get_by_text("They go to every group of their topics.")).to_be_visible()
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.locator("tbody tr")).to_have_count(3)
        page.get_by_role("link", name="sales").first.click()
        expect(page.get_by_text("dead 0")).to_be_visible()


def test_brokers_are_drawn_over_time_and_opened(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/brokers")
        page.get_by_role("link", name="orders-a").first.click()
        expect(page.get_by_role("img", name=re.compile("^now .* at most .* in the last"))).not_to_have_count(
            0
        )
        page.locator("summary", has_text="orders-a:0 settings").click()
        expect(page.get_by_role("cell", name="brokerClusterName", exact=True).first).to_be_visible()


def test_the_report_of_an_audit_is_shown(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/audits")
        page.get_by_role("link", name="20300101-120000").click()
        found = page.get_by_text("two replicas differ")
        expect(found).to_have_css("color", "rgb(255, 0, 0)")


def test_users_are_shown_without_their_passwords(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        opened.open("/access")
        expect(opened.page.get_by_role("cell", name="Topic:sales")).to_be_visible()
        assert "secret-of-shop" not in opened.page.content()


def test_a_topic_is_created_with_its_attributes(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/topics")
        page.get_by_role("textbox", name="Topic").fill("made-here")
        page.get_by_label("Queues on each broker").fill("3")
        page.get_by_label("Type of its messages").select_option("FIFO")
        page.get_by_label("Further attributes").fill("cleanup.policy=DELETE")
        page.get_by_role("button", name="Create …").click()
        expect(page.locator("h1")).to_have_text("Create topic made-here?")
        page.get_by_role("button", name="Create", exact=True).click()
        expect(page.locator("h1")).to_have_text("made-here")
        expect(page.get_by_text("message.type=FIFO")).to_be_visible()
        (found,) = json.loads(shown.run.ok("topic", "describe", "made-here", "-o", "json"))["brokers"]
        assert found["writeQueues"] == 3
        assert found["attributes"] == {"cleanup.policy": "DELETE", "message.type": "FIFO"}


def test_the_page_of_a_group_says_why_it_is_behind(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        opened.open("/group?name=billing")
        expect(opened.page.get_by_text("no member is connected to read the")).to_be_visible()


def test_connected_clients_are_listed(shown: Shown, browser: Browser) -> None:
    consumer = subprocess.Popen(
        [*COMMAND, "consume", "sales", "--group", "watching", "--state", str(shown.run.state)],
        stdout=subprocess.DEVNULL,
    )
    try:
        with watched_page(browser, shown.console.url, token=TOKEN) as opened:

            def listed() -> bool:
                opened.open("/clients")
                return opened.page.get_by_role("cell", name="watching", exact=True).count() == 1

            wait_until(listed, what="the page names the consumer")
    finally:
        consumer.terminate()
        consumer.wait(PATIENCE_S)


def test_a_user_gets_a_new_password(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/access")
        page.locator("select[name=name]").select_option("shop")
        page.get_by_label("Password", exact=True).fill("another-secret")
        page.get_by_label("Again").fill("another-secret")
        page.get_by_role("button", name="Set the password").click()
        expect(page.get_by_text("User shop has the new password.")).to_be_visible()
        assert "another-secret" not in page.content()
    stored = sorted(shown.run.state.glob("volumes/*/*/config/auth.json"))
    assert stored
    wait_until(
        lambda: all("another-secret" in path.read_text() for path in stored), what="every broker has it"
    )


def test_a_bundle_for_support_is_downloaded(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        opened.open("/about")
        with opened.page.expect_download() as started:
            opened.page.get_by_role("link", name="Download a bundle").click()
        with tarfile.open(started.value.path()) as bundle:
            names = bundle.getnames()
        assert "epochmq-support/status.json" in names
        assert any(name.startswith("epochmq-support/logs/") for name in names)


def test_a_replica_becomes_the_master_on_purpose(shown: Shown, browser: Browser) -> None:
    run = shown.run
    run.until(run.whole, "all are in sync")
    chosen = run.wait_slaves()[0]["pod"]
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/broker?name=orders-a")
        page.get_by_label("To the replica").select_option(f"orders/{chosen}")
        page.get_by_role("button", name="Promote …").click()
        page.get_by_role("button", name="Promote", exact=True).click()
        expect(page.get_by_role("status")).to_contain_text(f"{chosen} (id")
    run.until(lambda: run.is_master(chosen), "the chosen replica is the master")


def test_the_overview_says_why_a_broker_refuses_messages(shown: Shown, browser: Browser) -> None:
    run = shown.run
    name = f"orders/{run.wait_master()['pod']}"
    run.ok("fence", name)
    try:
        with watched_page(browser, shown.console.url, token=TOKEN) as opened:
            opened.open("/")
            expect(opened.page.get_by_text(f"next: epochmq fence {name} --off")).to_be_visible()
    finally:
        run.ok("fence", name, "--off")


def test_a_console_without_the_option_offers_no_changes(shown: Shown, browser: Browser) -> None:
    console = Console("--state", str(shown.run.state))
    try:
        with watched_page(browser, console.url) as opened:
            for path in shown.paths:
                opened.open(path)
                expect(opened.page.get_by_text("read-only")).to_be_visible()
                assert opened.page.locator("form[method=post]").count() == 0, path
            expect(opened.page.get_by_role("link", name="Download a bundle")).to_have_count(0)
    finally:
        console.stop()


def test_the_open_overview_shows_the_new_master_after_a_failover(shown: Shown, browser: Browser) -> None:
    with watched_page(browser, shown.console.url, token=TOKEN) as opened:
        page = opened.page
        opened.open("/")
        page.evaluate("window.openedOnce = true")
        old = shown.run.wait_master()
        master, epoch = fact(page, "master"), fact(page, "epoch")
        expect(master).to_have_text(old["pod"], timeout=PATIENCE_MS)
        before = int(epoch.inner_text())
        os.kill(old["pid"], signal.SIGKILL)
        wait_until(lambda: not alive(old["pid"]), what="the killed master is gone")
        wait_until(
            lambda: epoch.count() == 1 and int(epoch.inner_text()) > before and master.inner_text() != "none",
            timeout_s=2 * PATIENCE_S,
            what="the overview names a new master",
        )
        assert page.evaluate("window.openedOnce") is True, "without a reload"
        leader = shown.run.wait_master()
        expect(master).to_have_text(leader["pod"], timeout=PATIENCE_MS)


def fact(page: Page, name: str) -> Locator:
    """The value with this name on the card of the only group."""
    name_of_fact = page.locator("dt", has_text=re.compile(f"^{name}$"))
    return page.locator(".cards div").filter(has=name_of_fact).locator("dd")
