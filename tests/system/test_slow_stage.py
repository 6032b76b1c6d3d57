"""The page "Find the slow stage in five minutes": its program and its commands, and that they show what it says.

``FASTBUF_SCREENSHOTS=docs/images`` writes the picture of the page there.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nights import nightly

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "slow-stage.md").read_text()
(PROGRAM,) = re.findall(r'^```python title="visits.py"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
(REPAIR,) = re.findall(r"^```diff\n-(.*)\n\+(.*)\n```", PAGE, re.MULTILINE)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OURS = {"python": [sys.executable], "fastbuf": [sys.executable, "-m", "fastbuf"]}

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def command(number: int, **words: str) -> list[str]:
    """One of the page's, with this Python's programs; `words` stand in place of what the page cannot know."""
    first, *rest = shlex.split(COMMANDS[number])
    return [*OURS[first], *(words.get("url", word) if "#token" in word else word for word in rest)]


class Running:
    """The program, with a terminal of its own for the progress bar."""

    def __init__(self, folder: Path, number: int) -> None:
        master, slave = pty.openpty()
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "COLUMNS": "120", "TERM": "xterm"}
        self.process = subprocess.Popen(
            command(number), cwd=folder, stdout=subprocess.PIPE, stderr=slave, env=env, text=True
        )
        os.close(slave)
        self.printed: list[str] = []
        self.drawn = bytearray()
        self._master = master
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._lines, self._terminal)]
        for thread in self._threads:
            thread.start()

    def _lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.rstrip("\n"))

    def _terminal(self) -> None:
        try:
            while data := os.read(self._master, 1 << 16):
                self.drawn += data
        except OSError:  # nobody has it open any more
            pass

    def until(self, look: Callable[[], object], seconds: float) -> object:
        """What `look` gives once it gives something; None: the program has ended, or the time is over."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look()
            if found or self.process.poll() is not None:
                return found
            time.sleep(0.5)  # what a page or a terminal shows has no event
        return None

    def found(self, pattern: str) -> re.Match[str] | None:
        """Where it has printed that."""
        return re.search(pattern, "\n".join(self.printed), re.MULTILINE)

    def wait(self) -> None:
        """For its end."""
        code = self.process.wait(200)
        for thread in self._threads:
            thread.join(10)
        assert code == 0, self.drawn.decode(errors="replace")[-3000:]

    def close(self) -> None:
        """End it, however far it is."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        for thread in self._threads:
            thread.join(10)
        os.close(self._master)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[int], Running]]:
    started: list[Running] = []

    def start(number: int) -> Running:
        started.append(Running(tmp_path, number))
        return started[-1]

    yield start
    for one in started:
        one.close()


def shown(url: str, said: str, picture: Path) -> None:
    """The page in a browser says so; a picture of it is taken."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    root = ["--no-sandbox"] if os.getuid() == 0 else []
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=[*root, "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.wait_for_function(
            f"() => document.getElementById('sentence').textContent.includes('{said}')", timeout=60_000
        )
        page.wait_for_selector(".node.root")
        assert page.text_content(".node.root .name") == "people"
        page.wait_for_function(
            f"() => [...document.querySelectorAll('.flames button')].some(b => b.textContent.includes('{said}'))"
        )
        page.screenshot(path=picture, full_page=True)
        browser.close()


@nightly
def test_five_minutes(tmp_path: Path, run: Callable[[int], Running]) -> None:
    assert [words.split()[0] for words in COMMANDS] == ["pip", "python", "fastbuf", "python"]
    (tmp_path / "visits.py").write_text(PROGRAM)
    lines = PROGRAM.splitlines()
    slow = next(number for number, line in enumerate(lines, 1) if "not in ROBOTS" in line)
    said = f"visits.py:{slow} people"
    assert f"`visits.py:{slow}`" in PAGE
    assert f"Line {slow} asks" in PAGE
    assert said in PAGE

    before = run(1)
    assert before.until(lambda: before.found(r"^page: http"), 120), before.drawn.decode(errors="replace")
    address = before.found(r"^page: (http\S+)$")
    assert address is not None
    top = command(2, url=address[1])
    terminal: list[str] = []

    def named() -> bool:
        done = subprocess.run(
            top, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "160"}
        )
        terminal.append(done.stdout)
        return done.returncode == 0 and said in done.stdout

    assert before.until(named, 120), (terminal[-1:], before.printed, before.drawn.decode(errors="replace")[-2000:])
    print(terminal[-1])
    if CHROMIUM is not None:
        shown(address[1], said, Path(os.environ.get("FASTBUF_SCREENSHOTS") or tmp_path) / "slow-stage.png")
    before.wait()
    held = [int(share) for share in re.findall(rb"(\d+)% held back", before.drawn)]
    assert max(held, default=0) > 80, "the bar says so"
    assert before.found(re.escape(said)), before.printed

    old, new = REPAIR
    assert lines.count(old) == 1
    (tmp_path / "visits.py").write_text(PROGRAM.replace(old, new))
    after = run(3)
    after.wait()
    took = [one.found(r"^(450,000) visits of people, in (\d+) s$") for one in (before, after)]
    print(before.printed, after.printed)
    assert took[0] is not None, before.printed
    assert took[1] is not None, after.printed
    assert int(took[1][2]) < int(took[0][2]) / 2
