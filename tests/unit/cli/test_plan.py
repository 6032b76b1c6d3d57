"""``fastbuf plan`` tells what the library's estimate is, and where its rates are from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fastbuf.cli.app import cli
from fastbuf_spark.driver import calibration

LARGE = ("--executors", "1000", "--cores", "14", "--bytes", "10t", "--map-tasks", "10000", "--partitions", "10000")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "LEAST_S", 0.01)


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *arguments], env={"COLUMNS": "120"})


def test_it_says_what_is_taken_and_how_near_each_limit_is() -> None:
    said = plan(*LARGE, "--descriptors", "65536", "--write-mb", "500", "--read-mb", "1000", "--network-gbit", "25")
    assert said.exit_code == 0, said.output
    assert "mode          blocking" in said.output
    assert "10,000 with rows" in said.output
    assert "write at 500 MB/s a core, given" in said.output
    assert "network at 3,125 MB/s a host, given" in said.output
    assert "Nothing breaks. The nearest limits:" in said.output


def test_what_cannot_run_says_why_and_what_to_set() -> None:
    said = plan(*LARGE, "--mode", "pipelined", "--descriptors", "1024", "--read-mb", "1000")
    assert said.exit_code == 1
    assert "It cannot run: a producer of 10000 consumers needs 10001 segments" in said.output
    assert "may open 1024 descriptors" in said.output
    assert "What breaks first:\n  " in said.output
    assert "measured on a core of this machine" in said.output


def test_json_has_the_figures_and_where_the_rates_are_from() -> None:
    rows = ("--executors", "2", "--cores", "4", "--rows", "1000000", "--row-bytes", "100", "--partitions", "16")
    said = plan(*rows, "--json", "--network-gbit", "1", "--memory-bytes", "32m", "--ports", "7000", "7001")
    assert said.exit_code == 0, said.output
    made: dict[str, Any] = json.loads(said.output)
    assert (made["mode"], made["slots"], made["files"]) == ("blocking", 8, 1)
    assert made["rates"]["network_bytes_s"] == 1.25e8
    assert (made["rates_are"]["network_bytes_s"], made["rates_are"]["descriptors"][:4]) == ("given", "this")
    assert made["rates_are"]["write_bytes_s"] == "measured on a core of this machine"
    assert made["total_s"] > made["seconds"]["network"] > 0
    assert "ports of a host" in {limit["name"] for limit in made["limits"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--executors", "1", "--cores", "1", "--partitions", "1"), "give --bytes or --rows"),
        ((*LARGE, "--rows", "5"), "give --bytes or --rows"),
        ((*LARGE[:4], "--bytes", "ten", "--partitions", "1"), "--bytes is 'ten'"),
        ((*LARGE, "--task-cpus", "20"), "no task fits into an executor"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[str, ...], words: str) -> None:
    said = plan(*arguments)
    assert said.exit_code != 0
    assert words in said.output
