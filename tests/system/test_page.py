"""The page in a real browser: what it shows, at any width, in both schemes, by keyboard, and what it never does.

``FASTBUF_SCREENSHOTS=docs/images`` writes the pictures of the docs there.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import monitored
import pytest
from nights import nightly
from rich.console import Console

from fastbuf.monitor import Diagnosis, Exchange, Root, Server, serve
from fastbuf_spark.api.progress import ProgressBar
from fastbuf_spark.driver.summary import RunSummary

pytest.importorskip("uvicorn", reason="pip install 'fastbuf[monitor]'")
playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH: apt-get install chromium"),
]
# It must ask for nothing but the page
QUIET = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync"]
WIDTHS = [360, 719, 720, 1079, 1080, 1920]
EVIL = monitored.EVIL
STAGES = ["producers of clean", "clean", "producers of total", "total"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    root = ["--no-sandbox"] if os.getuid() == 0 else []
    with playwright.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=[*root, *QUIET, "--disable-component-update"])
        yield made
        made.close()


class Opened:
    """A page, and all that it asked for and complained of."""

    def __init__(self, browser: Any, server: Server, width: int, scheme: str, url: str | None = None) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.requests: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.goto(url or server.url)

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def wide(self) -> int:
        """By how much it is wider than the window, when it has been laid out anew."""
        deadline = time.monotonic() + 10
        while True:
            wider = int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
            if wider <= 0 or time.monotonic() > deadline:
                return wider
            self.page.wait_for_timeout(20)


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    history, source = monitored.story(time.time())
    with serve(source, history=history) as made:
        yield made


@pytest.fixture
def opened(browser: Any, server: Server) -> Iterator[Open]:
    made: list[Opened] = []

    def open_page(width: int = 1280, scheme: str = "light", of: Server = server, url: str | None = None) -> Opened:
        made.append(Opened(browser, of, width, scheme, url))
        return made[-1]

    yield open_page
    for one in made:
        one.context.close()


def ready(found: Opened) -> Any:
    found.page.wait_for_selector(".node")
    found.page.wait_for_selector(".flames button")
    found.page.wait_for_selector("#line .uplot")
    return found.page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1920])
def test_two_exchanges_in_a_row_with_one_root(opened: Open, width: int, scheme: str) -> None:
    found = opened(width, scheme)
    page = ready(found)
    assert page.inner_text("#sentence").startswith("Subtask 3 of total causes 90% of the lost time")
    assert found.texts("#sentence code") == ["total", "etl.py:41 normalize"]
    assert page.inner_text("#remedy").startswith("See what is different about its rows or its machine")
    assert "HIGH" in page.inner_text("#evidence")
    assert re.fullmatch(r"running for 3 min \d+ s|running for \d+ s", found.texts("#evidence li")[-1])
    assert found.texts(".node .name") == STAGES
    assert found.texts(".node.root .name") == ["total"], "one root is ringed, and no other"
    ring = page.locator(".node.root .ring").evaluate("ring => getComputedStyle(ring).strokeWidth")
    assert ring == "3px"
    ways = found.texts(".edge text")
    assert len(ways) == 3
    assert re.match(r"(6|7)\d % held back · no credit", ways[1])
    assert ways[2] == "through Spark"
    patterns = [
        page.locator(".edge path.way").nth(n).evaluate("way => getComputedStyle(way).strokeDasharray") for n in range(3)
    ]
    assert len(set(patterns)) >= 2, "told apart by pattern, not by colour alone"
    # The root's stage is chosen, its subtasks by lost time
    assert page.get_attribute(".node.root", "aria-pressed") == "true"
    assert found.texts("#tasks tbody tr button") == ["3", "1", "0", "2"]
    assert page.locator("tr.root").get_attribute("data-subtask") == "3"
    assert "busy in the function" in str(page.get_attribute("tr.root .bar", "aria-label"))
    assert "etl.py:41 normalize" in found.texts(".flames button")
    assert "waited" in page.inner_text(".heat-read")
    assert found.said == []


def test_the_heat_map_shows_who_waited_for_whom(opened: Open) -> None:
    page = ready(opened())
    label = str(page.get_attribute("#heat canvas", "aria-label"))
    assert "4 producers and 4 consumers" in label
    assert re.search(r"The longest: producer 3 waited .* for consumer 3", label)
    picture = """canvas => {
        const at = (column) => [...canvas.getContext('2d').getImageData(
            Math.floor((column + 0.4) * canvas.width / 5), Math.floor(canvas.height * 0.1), 1, 1).data];
        return [at(0), at(3), at(4)];
    }"""
    cold, hot, rest = page.locator("#heat canvas").evaluate(picture)
    assert hot[0] - hot[1] > 100, hot  # red
    assert abs(cold[0] - cold[1]) < 10, cold  # grey
    assert cold[1] > rest[1] > hot[1]
    page.focus("#heat canvas")
    page.keyboard.press("ArrowRight")  # to the longest
    assert page.inner_text(".heat-read").startswith("producer 3 waited")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert re.match(r"producer 2 waited .* for all other consumers", page.inner_text(".heat-read"))


def test_the_flame_graph_of_one_subtask_on_and_off_a_cpu(opened: Open) -> None:
    found = opened()
    page = ready(found)
    page.click('#tasks tr[data-subtask="3"] button')
    page.wait_for_function("() => document.querySelector('.tools select').value === '3'")
    page.get_by_label("waiting", exact=True).check()
    page.wait_for_function(
        "() => { const shown = [...document.querySelectorAll('.flames button')].map(b => b.textContent);"
        " return shown.includes('socket.py:705 readinto') && !shown.includes('re.py:209 sub'); }"
    )
    page.get_by_label("on CPU").check()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.flames button')].some(b => b.textContent === 're.py:209 sub')"
    )
    page.get_by_role("button", name="etl.py:41 normalize: ").click()
    assert found.texts(".flames button") == ["etl.py:41 normalize", "re.py:209 sub"]
    page.get_by_role("button", name="Whole graph").click()
    assert found.texts(".flames button")[0] == "all samples"
    # One without stacks: the lines that it was found at
    page.select_option(".tools select", "0")
    page.get_by_label("all", exact=True).check()
    page.wait_for_function("() => document.querySelectorAll('.flames button').length === 3")
    assert found.texts(".flames button")[1:] == ["etl.py:41 normalize", "etl.py:44 normalize"]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_width_scrolls_sideways(opened: Open, width: int) -> None:
    found = opened(width)
    page = ready(found)
    assert found.wide() == 0
    # Nothing sticks out of its box, either
    out = """() => [...document.querySelectorAll('section')]
        .filter((section) => section.scrollWidth > section.clientWidth + 1).map((section) => section.id)"""
    assert page.evaluate(out) == []


CONTRAST = """() => {
  const part = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const ratio = (a, b) => {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const read = (text) => {
    const to = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    to.fillStyle = text; to.fillRect(0, 0, 1, 1);
    return [...to.getImageData(0, 0, 1, 1).data];
  };
  const variable = (name) => read(getComputedStyle(document.documentElement).getPropertyValue(name));
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !element.checkVisibility() || element.closest('svg, option, .skip')) continue;
    let under = element;
    while (under && read(getComputedStyle(under).backgroundColor)[3] === 0) under = under.parentElement;
    const behind = getComputedStyle(under ?? document.body).backgroundColor;
    const seen = ratio(read(getComputedStyle(element).color), read(behind));
    if (seen < 4.5) found.push(`${element.tagName} '${element.textContent.slice(0, 30)}': ${seen.toFixed(2)}`);
  }
  // Text of the graph, on all that may be behind it; and lines and fills, which need three to one
  const text = [['--ink', '--fill'], ['--ink', '--soft'], ['--ink', '--panel']];
  text.push(['--root', '--soft'], ['--root', '--fill']);
  const drawn = ['--root', '--high', '--low', '--quiet', '--user', '--credit', '--link-wait', '--segment'];
  const pairs = [...text.map((pair) => [...pair, 4.5]), ...drawn.map((name) => [name, '--panel', 3])];
  for (const [front, back, least] of [...pairs, ['--engine-out', '--panel', 3], ['--mean', '--soft', 3]]) {
    const seen = ratio(variable(front), variable(back));
    if (seen < least) found.push(`${front} on ${back}: ${seen.toFixed(2)}`);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_that_of_wcag_aa(opened: Open, scheme: str) -> None:
    page = ready(opened(1280, scheme))
    assert page.evaluate(CONTRAST) == []


def test_everything_is_reached_by_keyboard(opened: Open) -> None:
    page = ready(opened())
    name = """() => {
        const at = document.activeElement;
        return at.dataset?.vertex ?? at.id ?? ''
    }"""
    reached: list[str] = []
    kinds: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate(name)
        kinds.append(page.evaluate("document.activeElement.tagName"))
        if at == "" and kinds[-1] == "BODY":
            break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        box = page.evaluate(
            "(b => b ? getComputedStyle(b).strokeWidth : '')(document.activeElement.querySelector('.box'))"
        )
        assert outline != "none" or box == "3px", f"one sees where one is: {at}"
        reached.append(at)
    assert [id for id in reached if id.endswith(("producers", "consumers"))] == [
        "clean-1-producers",
        "clean-1-consumers",
        "total-2-producers",
        "total-2-consumers",
    ]
    assert {"job", "scrubber", "live"} <= set(reached)
    assert {"CANVAS", "A", "BUTTON", "SELECT", "INPUT"} <= set(kinds)
    # And can be used by it
    page.focus('.node[data-vertex="total-2-consumers"]')
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert "producers of total" in page.inner_text("#subtasks-title")
    assert page.evaluate(name) == "total-2-producers"


def test_no_request_leaves_the_pages_own_origin(opened: Open, server: Server) -> None:
    found = opened()
    page = ready(found)
    page.wait_for_function("() => document.documentElement.dataset.drawMs")
    assert len(found.requests) > 10
    assert [url for url in found.requests if not url.startswith(server.address + "/")] == []
    assert [url for url in found.requests if server.token in url] == [], "the token is in no request's address"
    assert found.said == []


def test_the_token_leaves_the_address_bar_and_a_reload_still_works(opened: Open, server: Server) -> None:
    found = opened()
    page = ready(found)
    assert page.url == server.address + "/"
    assert page.evaluate("document.cookie") == "", "no script can read it"
    page.reload()
    ready(found)


@pytest.mark.parametrize("end", ["/", "/#token=" + 43 * "x"])
def test_without_its_token_it_shows_nothing(opened: Open, server: Server, end: str) -> None:
    found = opened(url=server.address + end)
    found.page.wait_for_function("() => document.getElementById('sentence').textContent.includes('whole address')")
    assert found.texts(".node") == []
    assert "total" not in found.page.content()


def test_names_are_text(opened: Open) -> None:
    """A column, a function, a file, a reason, a key: none of them is ever markup."""
    clean, total = monitored.two_in_a_row()
    line = f"{EVIL}.py:1 {EVIL}"
    slow = monitored.consumer(19.0, line=line, stacks={"on": {f"{line};{EVIL}": 9}}, state=EVIL, target=EVIL)
    evil = monitored.exchange(
        "evil-1", EVIL, dict(total.producers), {**total.consumers, 3: slow}, reason=EVIL, upstream=("clean-1",)
    )
    failed = dataclasses.replace(evil, id="evil-2", upstream=(), outcome="aborted", reason=f"Traceback {EVIL}")
    hot = Root("total", "total", 3, "skew", 0.9, 0.9, evidence={f"share of the key {EVIL!r}": 0.61}, key=repr(EVIL))
    skewed = dataclasses.replace(total, id="evil-3", upstream=(), outcome="ok", diagnosis=Diagnosis("HIGH", 0.8, [hot]))
    with serve(lambda: [clean, evil, failed, skewed]) as server:
        found = opened(of=server)
        page = ready(found)
        page.wait_for_function("() => document.getElementById('job').options.length === 3")
        assert EVIL in page.inner_text("#sentence")
        assert EVIL in " ".join(found.texts("title"))
        assert line in " ".join(found.texts(".flames button"))
        page.click('#tasks tr[data-subtask="3"] button')
        page.select_option("#job", "evil-2")
        page.wait_for_function("() => document.getElementById('sentence').textContent.includes('failed')")
        assert EVIL in page.inner_text("#sentence")
        assert not page.locator("#reason").is_visible(), "of one line there is no more to see"
        page.select_option("#job", "evil-3")
        page.wait_for_function("() => document.getElementById('sentence').textContent.includes('has 61% of the rows')")
        assert f"key {EVIL!r} has 61%" in page.inner_text("#sentence")
        assert page.locator("img").count() == 0
        assert page.title() == "fastbuf"
        assert found.said == []


@pytest.mark.parametrize("width", [360, 1280])
def test_names_of_two_hundred_letters_are_clipped_and_all_of_them_is_told(opened: Open, width: int) -> None:
    name, line = "a_long_name_" * 16 + "the_end!", "etl" + "x" * 60 + ".py:41 " + "b" * 130
    made = monitored.exchange(
        "long-1",
        name,
        {n: monitored.producer(12.0, 1) for n in range(3)},
        {n: monitored.consumer(19.0 if n == 1 else 3.0, line=line) for n in range(3)},
    )
    assert (len(name), len(line)) == (200, 200)
    with serve(lambda: [made]) as server:
        found = opened(width, of=server)
        page = ready(found)
        assert [len(text) for text in found.texts("#sentence code")] == [64, 64]
        assert found.texts("#sentence code")[0].endswith("the_end!")
        assert page.locator("#sentence code").nth(1).get_attribute("title") == line
        assert name in found.texts(".node title")
        ends = """() => [...document.querySelectorAll('.node')].map((node) => {
            const end = (name) => node.querySelector(name).getBoundingClientRect();
            const badge = end('.badge');
            return [end('.name').right, badge.width ? badge.left : end('.box').right];
        })"""
        for text, edge in page.evaluate(ends):
            assert text < edge, "no name sticks out of its box, or lies under the badge"
        assert found.wide() == 0
        assert page.locator("#sentence").bounding_box()["height"] < (330 if width == 360 else 130)
        assert found.said == []


def test_a_run_that_failed_says_why_and_blames_no_slowness(opened: Open) -> None:
    why = "ValueError: could not convert 'n/a'"
    trace = f'{why}\nTraceback (most recent call last):\n  File "etl.py", line 41, in normalize\n{why}'
    clean, total = monitored.two_in_a_row()
    both = [
        dataclasses.replace(clean, outcome="aborted", reason=f"the stage behind it failed\n{trace}"),
        dataclasses.replace(total, outcome="aborted", reason=trace),
    ]
    with serve(lambda: both) as server:
        found = opened(of=server)
        page = ready(found)
        assert page.inner_text("#sentence") == f"total failed: {why}"
        assert found.texts("#evidence li") == ["FAILED", "took 20 s"]
        assert page.inner_text("#remedy") == ""
        assert page.locator(".node.root").count() + page.locator("tr.root").count() == 0
        page.click("#reason summary")
        assert "line 41, in normalize" in page.inner_text("#reason pre")
        assert found.wide() == 0
        assert found.said == []


def test_a_slow_network_is_a_root_between_two_stages(opened: Open) -> None:
    sends = {n: monitored.producer(0.0, 0, seconds={"link": 15.0, "user": 5.0}, blocked={"0": 15.0}) for n in range(2)}
    made = monitored.exchange("far-1", "far", sends, {n: monitored.consumer(1.0) for n in range(2)})
    with serve(lambda: [made]) as server:
        found = opened(of=server)
        found.page.wait_for_selector(".edge.root")
        assert "the network to it takes no more (a producer waited 75%" in found.page.inner_text("#sentence")
        assert found.texts(".edge.root text")[0].startswith("root: ")
        assert found.texts(".node.root") == []


def test_waits_under_way_grow_as_one_looks(opened: Open) -> None:
    """The last word of a task is a second old; its wait has gone on since."""
    still = monitored.two_in_a_row()
    with serve(lambda: still) as server:
        page = ready(opened(of=server))
        page.click('.node[data-vertex="total-2-producers"]')
        cell = '#tasks tr[data-subtask="3"] td.now'
        page.wait_for_function(
            "() => new Set(window.seen = [...(window.seen ?? []), document.querySelector("
            f"'{cell.replace(chr(39), chr(34))}').textContent]).size >= 2"
        )
        first, *later = dict.fromkeys(page.evaluate("window.seen"))
        held = [int(re.search(r"\((\d+)\ss\)", words)[1]) for words in (first, *later)]  # type: ignore[index]
        assert held[0] in (17, 18)
        assert max(held) > 17
        assert "waits for credit of 3" in first


def test_the_time_line_looks_back(opened: Open) -> None:
    found = opened()
    page = ready(found)
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('live')")
    page.wait_for_function("() => Number(document.getElementById('scrubber').max) > 100")
    ways = ".edge text"
    now = found.texts(ways)
    assert now[1].startswith(("6", "7"))
    assert reds(page) > 0
    page.focus("#scrubber")
    page.keyboard.press("Home")
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('looking back')")
    page.wait_for_function("() => document.querySelectorAll('.edge text')[1].textContent.startsWith('4 % held back')")
    assert page.get_attribute("#live", "aria-pressed") == "false"
    before = page.inner_text("#status").removeprefix("looking back at ")
    assert page.get_attribute("#scrubber", "aria-valuetext") == before
    page.click("#live")
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('live')")
    assert found.texts(ways)[1].startswith(("6", "7"))


def test_nothing_has_run_yet_and_the_driver_ends(opened: Open) -> None:
    server = serve(list)
    found = opened(of=server)
    found.page.wait_for_function(
        "() => document.getElementById('sentence').textContent.startsWith('Nothing has run yet')"
    )
    server.close()
    found.page.wait_for_function("() => document.getElementById('status').textContent.startsWith('connection lost')")


def test_the_line_of_an_ended_job_grows_no_more(opened: Open) -> None:
    page = ready(opened())
    times = page.evaluate("""async () => {
        const { Line } = await import("/page/line.js");
        const made = (name) => document.createElement(name);
        const line = new Line(made("div"), made("input"), made("output"), made("button"), () => {});
        const job = (state) => ({ state, vertices: [], edges: [] });
        line.load({ at: [1], blocked: [0], busy: [0], recordsPerSecond: [0] });
        for (const at of [2, 4000, 8000]) line.add(job("FINISHED"), at);
        line.add(job("RUNNING"), 9000);
        for (const at of [9001, 9002, 20000]) line.add(job("FINISHED"), at);
        return line.data[0];
    }""")
    assert times == [1, 9000, 9001]


def status(page: Any, begin: str) -> None:
    page.wait_for_function("begin => document.getElementById('status').textContent.startsWith(begin)", arg=begin)


def test_after_a_restart_it_asks_for_the_new_address_and_takes_it_in_the_same_tab(opened: Open) -> None:
    first = serve(list, token=6 * "a+b&c%2")
    page = opened(of=first).page
    status(page, "live")
    first.close()
    with serve(monitored.two_in_a_row, port=int(first.address.rpartition(":")[2])) as second:
        status(page, "not let in")
        assert "whole address" in page.text_content("#sentence")
        page.evaluate("url => { location.href = url; }", second.url)  # only what stands behind the # is new
        status(page, "live")
        page.wait_for_selector(".node")
        assert page.url == second.address + "/"


def test_a_page_that_is_one_too_many_comes_in_later(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(list) as server:
        monkeypatch.setattr("fastbuf.monitor.routes.MOST_STREAMS", 0)
        page = opened(of=server).page
        status(page, "connection lost")
        monkeypatch.setattr("fastbuf.monitor.routes.MOST_STREAMS", 1)
        status(page, "live")


@nightly
def test_a_thousand_tasks_are_drawn_in_time(opened: Open) -> None:
    some = [monitored.many(500)]
    with serve(lambda: some) as server:
        page = ready(opened(1920, of=server))

        def draws() -> float:
            """Milliseconds: the best of three, since others use this machine, too."""
            seen = []
            for _ in range(3):
                page.evaluate("() => delete document.documentElement.dataset.drawMs")
                page.wait_for_function("() => document.documentElement.dataset.drawMs")
                seen.append(float(page.evaluate("() => document.documentElement.dataset.drawMs")))
            return min(seen)

        first = draws()
        assert page.locator("#tasks tbody tr").count() == 12
        page.get_by_role("button", name="Show all 500").click()
        assert page.locator("#tasks tbody tr").count() == 500
        every = draws()
        print(f"a snapshot of 1,000 tasks is drawn in {first:.0f} ms; with all 500 rows of a stage in {every:.0f} ms")
        assert every < 900, "a snapshot comes each second"


# pictures


def size_of(picture: Path) -> tuple[int, int]:
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    return struct.unpack(">II", data[16:24])  # type: ignore[return-value]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    chosen = Path(os.environ.get("FASTBUF_SCREENSHOTS") or tmp_path)
    chosen.mkdir(parents=True, exist_ok=True)
    return chosen


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("page-light", 1280, "light"), ("page-dark", 1280, "dark"), ("page-narrow", 360, "light")],
)
def test_pictures_of_the_page(opened: Open, folder: Path, name: str, width: int, scheme: str) -> None:
    page = ready(opened(width, scheme))
    page.click('#tasks tr[data-subtask="3"] button')
    page.wait_for_function("() => document.querySelector('.tools select').value === '3'")
    page.wait_for_function("() => document.querySelectorAll('.flames button').length > 5")
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=folder / f"{name}.png", full_page=True)
    wide, high = size_of(folder / f"{name}.png")
    assert (wide, high > 600) == (width, True)


def printed(console: Console) -> str:
    """What a terminal shows, as a page of its own."""
    html = console.export_html(inline_styles=True)
    return html.replace(
        "<head>", "<head><style>body{display:inline-block;background:#14171a;color:#dfe3e6;padding:14px}</style>"
    )


def test_pictures_of_the_terminal(browser: Any, folder: Path, server: Server) -> None:
    from fastbuf.cli.top import Page, view

    console = Console(width=124, record=True, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(view(Page(server.url).snapshot(), None, None, 20))
    console.file.close()
    bar = Console(width=100, record=True, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115
    run = RunSummary("x", "total", "pipelined", tasks=4, consumers={0: {"records": 1}})
    run.producers |= {
        n: {"records": 310_000, "bytes": 32 << 20, "state": "credit", "backPressured": 0.82} for n in (0, 1)
    }
    run.producers |= {n: {"records": 280_000, "bytes": 29 << 20} for n in (2, 3)}
    shown = ProgressBar(bar)
    shown._table([run], 0.0)
    run.producers[0] = {**run.producers[0], "records": 330_000}
    run.seconds = 7.0
    bar.print(shown._table([run], 7.0))
    assert "7 s left" in bar.export_text(clear=False), "two of four have taken seven seconds"
    bar.file.close()
    for name, said in (("top", console), ("progress", bar)):
        page = browser.new_page(viewport={"width": 1100, "height": 500})
        page.set_content(printed(said))
        page.locator("pre").screenshot(path=folder / f"{name}.png")
        page.close()
        assert size_of(folder / f"{name}.png")[0] > 600


def test_the_vendored_code_names_its_licence_and_no_other_host() -> None:
    vendor = Path(__file__).resolve().parents[2] / "fastbuf" / "monitor" / "page" / "vendor"
    for code in vendor.glob("*.js"):
        assert "Permission is hereby granted" in (vendor / f"{code.stem}.LICENSE.txt").read_text()
    hosts = {
        host for file in vendor.parent.rglob("*.*") for host in re.findall(r"https?://([\w.-]+)", file.read_text())
    }
    assert hosts <= {"www.w3.org", "github.com"}, "of namespaces and of a comment: nothing is fetched"


def test_an_exchange_that_tells_nothing_yet_is_shown(opened: Open) -> None:
    with serve(lambda: [Exchange("a", "quiet")]) as server:
        found = opened(of=server)
        found.page.wait_for_selector(".node")
        found.page.wait_for_function("() => document.getElementById('tasks').textContent.includes('told its figures')")
        assert found.texts(".node .about") == ["0 subtasks · nothing told yet"] * 2
        assert found.said == []


def test_tasks_that_tell_their_rows_alone_are_shown_with_them(opened: Open) -> None:
    """A blocking exchange, live with what it has: no times, and so no state for them to grow in."""
    told = {0: {"records": 41_000, "bytes": 1 << 20, "state": "runs"}, 1: {"records": 7, "bytes": 70}}
    with serve(lambda: [Exchange("a", "blocks", "blocking", began=time.time(), producers=told)]) as server:
        found = opened(of=server)
        found.page.wait_for_selector(".node")
        found.page.click('.node[data-vertex="a-producers"]')
        found.page.wait_for_selector('#tasks tr[data-subtask="1"]')
        cell = '#tasks tr[data-subtask="0"] td.now'
        found.page.wait_for_timeout(1500)  # between two reports, when waits would grow
        assert (found.texts(cell), found.texts(cell.replace("0", "1"))) == (["runs"], ["ended"])
        widths = found.page.eval_on_selector_all(
            '#tasks tr[data-subtask="0"] .s-other', "all => all.map(part => part.getBoundingClientRect().width)"
        )
        assert sum(widths) == 0
        # Of times nothing is known, so no share of them is told, be it of nought
        assert found.texts("#sentence") == [
            "Nothing is known of what holds up this exchange: its tasks tell their rows and bytes alone."
        ]
        assert found.texts(".node .about") == ["2 subtasks · 41.0 k rows", "0 subtasks · nothing told yet"]
        assert found.texts(".edge text") == ["blocking"]
        assert found.texts("#flame .empty") == ["Of these tasks no code is looked at."]
        assert found.texts("#tasks .small") == ["runs · 41.0 k rows", "ended · 7 rows"]  # in a narrow window
        assert found.said == []


def test_the_time_line_of_tasks_that_tell_no_times_has_rows_alone(opened: Open) -> None:
    """Not a share of nought: the line of what is held back would lie along the axis, as if all were well."""
    told = {0: {"records": 41_000, "bytes": 1 << 20, "state": "runs"}}
    with serve(lambda: [Exchange("a", "blocks", "blocking", began=time.time(), producers=told)]) as server:
        found = opened(of=server)
        page = found.page
        page.wait_for_selector("#line canvas")
        for again in (False, True):  # as the page hears it, and as the server has kept it
            if again:
                page.reload()
            page.wait_for_function("() => Number(document.getElementById('scrubber').max) > 1")
            page.wait_for_selector("#line canvas")
            page.hover("#line .u-over")
            page.wait_for_function("() => document.querySelector('#line .u-legend').textContent.includes('not known')")
            told_of = found.texts("#line .u-series .u-value")[1:]
            assert told_of == ["not known", "not known", "0"]
            assert reds(page) == 0
        assert found.said == []


def reds(page: Any) -> int:
    """Pixels of the time line in the colour of what is held back."""
    return page.evaluate(
        """() => {
            const canvas = document.querySelector("#line canvas");
            const ours = document.createElement("canvas").getContext("2d");
            ours.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--high").trim();
            ours.fillRect(0, 0, 1, 1);
            const wanted = ours.getImageData(0, 0, 1, 1).data;
            const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            let found = 0;
            for (let i = 0; i < all.length; i += 4) found += [0, 1, 2, 3].every((k) => all[i + k] === wanted[k]);
            return found;
        }"""
    )


def test_the_stage_that_runs_is_shown_first(opened: Open) -> None:
    """The consumers of a blocking exchange begin when its producers have ended."""
    told = {0: {"records": 41_000, "bytes": 1 << 20, "state": "runs"}}
    with serve(lambda: [Exchange("a", "blocks", "blocking", began=time.time(), producers=told)]) as server:
        found = opened(of=server)
        found.page.wait_for_selector('#tasks tr[data-subtask="0"]')
        assert found.texts("#subtasks-title code") == ["producers of blocks"]


STREAM = """() => [...document.querySelectorAll('#queries article')].map((one) => one.dataset.query)"""


@pytest.mark.parametrize("width", [360, 1280])
def test_a_stream_is_shown_with_why_its_checkpoint_waits(opened: Open, width: int) -> None:
    began, first = time.time(), []

    def queries() -> list[dict[str, Any]]:
        passed = time.time() - began
        first.append(passed)
        # An ended one too; all that is a name looks like markup
        running = monitored.a_stream(0.9 * passed, began, name=EVIL, waiting=f"waits for {EVIL}")
        over = monitored.a_stream(name="over", id="job-2", state="failed", message=EVIL, waiting=None)
        return [over, running]

    with serve(list, queries=queries) as server:
        found = opened(width, of=server)
        page = found.page
        page.wait_for_function("() => document.querySelector('#queries .level.high')?.checkVisibility()")
        page.wait_for_function(
            "() => document.getElementById('sentence').textContent.includes('holds up those before it')"
        )
        assert page.evaluate(STREAM) == [EVIL, "over"], "the one that runs comes first"
        stages = [row.split() for row in found.texts("#queries article:first-child table.stages tbody td:first-child")]
        assert stages == [["source"], ["running"], ["sink"]]
        held = found.texts("#queries article:first-child table.stages tbody td:nth-child(5)")
        assert re.fullmatch(r"\d\d % · waits for credit", held[0])
        assert held[1:] == ["0 %", "0 %"]
        held = "`running`: 1,200 windows are open, 3 late rows, `split b of source` holds its watermark back."
        assert found.texts("#queries .times") == [held.replace("`", "")]
        assert found.texts("#queries .waiting") == [f"The checkpoint in progress waits for {EVIL}"]
        rows = found.texts("#queries article:first-child table.checkpoints tbody tr")
        assert [re.match(r"\d( failed| in progress)?", row)[0] for row in rows] == [  # type: ignore[index]
            "4 in progress",
            "3",
            "2 failed",
            "1",
        ]
        assert "2.5 s" in rows[1]
        assert "disk full" in rows[2]
        assert not page.locator("#stages").is_visible(), "no shuffle has run"
        assert found.wide() == 0
        assert page.evaluate(CONTRAST) == []
        assert page.locator("img").count() == 0
        assert found.said == []


def test_streams_beside_shuffles_hide_none(opened: Open, server: Server) -> None:
    with serve(monitored.two_in_a_row, queries=lambda: [monitored.a_stream()]) as both:
        found = opened(of=both)
        ready(found)
        assert found.page.evaluate(STREAM) == ["orders to parquet"]
        assert found.page.inner_text("#sentence").startswith("Subtask 3 of total")
        found.page.set_viewport_size({"width": 360, "height": 900})
        assert found.wide() == 0
    found = opened()
    ready(found)
    assert not found.page.locator("#streams").is_visible(), "without one there is no such part"
