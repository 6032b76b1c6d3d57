"""``fastbuf plan``: what a shuffle takes on a cluster that is not there."""

from __future__ import annotations

import json
import resource
from dataclasses import asdict, replace
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.driver.calibration import NETWORK_BYTES_S, measured
from fastbuf_spark.driver.cluster import Cluster
from fastbuf_spark.driver.estimate import Estimate, Rates, estimate

FILE_BYTES = 128 << 20  #: what Spark gives a task to read (spark.sql.files.maxPartitionBytes)
NEAR = 3  #: limits that are shown where nothing breaks


def run(console: Console, **options: Any) -> int:
    """The command; returns its exit code, 1 if the shuffle cannot run there."""
    nbytes = options["nbytes"] or options["rows"] * options["row_bytes"]
    here = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    descriptors = options["descriptors"] or here
    cluster = Cluster(
        options["executors"],
        options["cores"],
        options["task_cpus"],
        options["executors_per_host"],
        descriptors,
        descriptors,
    )
    settings = {name: options[name] for name in ("memory_bytes", "segment_size") if options[name] is not None}
    if options["ports"]:
        settings["port_min"], settings["port_max"] = options["ports"]
    rates, where = _rates(options)
    where["descriptors"] = "given" if options["descriptors"] else "this process's (ulimit -n)"
    plan = estimate(
        cluster,
        nbytes,
        options["map_tasks"] or -(-nbytes // FILE_BYTES),
        options["partitions"],
        rates,
        options["mode"],
        ShuffleConf(**settings),
        options["executor_memory"],
        options["driver_memory"],
    )
    if options["as_json"]:
        click.echo(json.dumps({**plan.as_dict(), "rates": asdict(rates), "rates_are": where}, indent=2))
    else:
        _show(console, plan, rates, where)
    return 1 if plan.problems else 0


def _rates(options: dict[str, Any]) -> tuple[Rates, dict[str, str]]:
    """The rates, and for each where it is from."""
    names = {"write_bytes_s": options["write_mb"], "read_bytes_s": options["read_mb"]}
    network = options["network_gbit"]
    rates = measured(options["row_bytes"], options["partitions"], network * 1e9 / 8 if network else NETWORK_BYTES_S)
    where = {name: "given" if value else "measured on a core of this machine" for name, value in names.items()}
    where |= dict.fromkeys(("message_s", "channel_s"), "measured on a core of this machine")
    where["network_bytes_s"] = "given" if network else "assumed"
    return replace(rates, **{name: value * 1e6 for name, value in names.items() if value}), where


def _show(console: Console, plan: Estimate, rates: Rates, where: dict[str, str]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    seconds = plan.seconds
    rows = [
        ("mode", plan.mode),
        ("slots", f"{plan.slots:,}"),
        ("memory", f"{_size(plan.task_memory_bytes)} a task at most, {_size(plan.executor_memory_bytes)} an executor"),
        ("", f"{_size(plan.host_memory_bytes)} a host, {_size(plan.driver_memory_bytes)} in the driver's Python"),
        ("files", f"{plan.files:,} with rows"),
        ("connections", f"{plan.connections:,} between workers at once, {plan.control_connections:,} to the driver"),
        ("messages", f"{plan.messages:,} to and from the driver, {_size(plan.message_bytes)}"),
        ("descriptions", f"{_size(plan.description_bytes)} through Spark's shuffle"),
        ("seconds", f"{plan.total_s:,.1f}, and what your functions take"),
        *(("", f"{took:,.2f} {name}{_about(name, rates, where)}") for name, took in seconds.items()),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for problem in plan.problems:
        console.print(f"It cannot run: {problem}", soft_wrap=True, highlight=False)
    broken = [each for each in plan.limits if each.share > 1]
    title = "What breaks first:" if broken else "Nothing breaks. The nearest limits:"
    console.print(f"\n{title}")
    for limit in broken or plan.limits[:NEAR]:
        console.print(f"  {limit.share:.0%} of {limit}", soft_wrap=True, highlight=False)
    if plan.advice:
        console.print(f"\n{plan.advice}", soft_wrap=True, highlight=False)


def _about(name: str, rates: Rates, where: dict[str, str]) -> str:
    """By which rate seconds were made of bytes, and where that is from."""
    rate = asdict(rates).get(f"{name}_bytes_s")
    if rate is None:
        return {"driver": " of its thread, beside the others", "start": " of Python's tasks"}[name]
    each = "a host" if name == "network" else "a core"
    return f" at {rate / 1e6:,.0f} MB/s {each}, {where[f'{name}_bytes_s']}"


def _size(nbytes: int) -> str:
    """Bytes as people read them."""
    size, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:,.1f} {units[0]}" if units[0] != "bytes" else f"{nbytes} bytes"
