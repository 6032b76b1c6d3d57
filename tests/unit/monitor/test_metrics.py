"""The figures that Prometheus, OpenTelemetry and Grafana read are the same ones."""

from __future__ import annotations

import json
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import monitored
import pytest

import fastbuf as fb
from fastbuf.errors import ConfigError
from fastbuf.monitor import Exchange, Recorder
from fastbuf.monitor.metrics import COUNTER, LOSSES, METRICS, measure
from fastbuf.monitor.otel import instrument
from fastbuf.monitor.prometheus import exposition
from fastbuf.monitor.task import LOSSES as WORDS

parser = pytest.importorskip("prometheus_client.parser", reason="pip install 'fastbuf[monitor]'")
NAMES = {metric.name + ("_total" if metric.kind == COUNTER else "") for metric in METRICS}


class NotLoaded:
    """A pickle of it cannot be loaded."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def parsed(recorder: Recorder) -> dict[str, dict[tuple[str, ...], float]]:
    """What Prometheus's own parser makes of the answer."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parser.text_string_to_metric_families(exposition(recorder).decode()):
        labels = next((metric.labels for metric in METRICS if metric.name == family.name), ())
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            key = tuple(sample.labels[label] for label in labels)
            assert key not in values, f"{sample.name} twice: {key}"
            values[key] = sample.value
    return found


def test_prometheuss_parser_reads_every_metric() -> None:
    found = parsed(Recorder(monitored.two_in_a_row, queries=lambda: [monitored.a_stream()]))
    assert set(found) == NAMES
    assert found["fastbuf_stream_rows_total"]["orders to parquet", "source", "out"] == 40_000
    assert found["fastbuf_task_state_seconds_total"]["total", "producers", "1", "credit"] == 15.0
    assert found["fastbuf_edge_blocked_seconds_total"]["total", "3"] == pytest.approx(0.9 * 62)
    assert found["fastbuf_records_total"]["total", "consumers"] == 69_000
    assert found["fastbuf_losses_total"]["total", "producers", "buffers_dropped"] == 12
    assert found["fastbuf_pool_usage_ratio"]["total", "out"] == 0.94
    assert found["fastbuf_back_pressured_ratio"]["total", "producers"] == 0.85
    assert found["fastbuf_diagnosis_info"] == {("total", "consumers", "3", "user_function", "HIGH"): 1.0}


@pytest.mark.parametrize("name", [monitored.EVIL, 'a"b\\c\nd{}', "ünï → ☃", ""])
def test_any_name_is_a_label(name: str) -> None:
    made = Exchange("a", name, consumers={0: monitored.consumer(3.0)})
    found = parsed(Recorder(lambda: [made], queries=lambda: [monitored.a_stream(name=name)]))
    assert (name, "consumers") in found["fastbuf_records_total"]
    assert (name, "running") in found["fastbuf_stream_info"]


def test_two_runs_of_one_name_are_one_series() -> None:
    runs = [Exchange(id, "x", consumers={0: monitored.consumer(3.0)}) for id in "ab"]
    assert parsed(Recorder(lambda: runs))["fastbuf_records_total"]["x", "consumers"] == 40_000


def test_what_a_slow_consumer_and_a_lost_producer_cost_is_counted() -> None:
    """Broadcasts that drop or cut off, a gate that forgets a producer, one that skips a record."""
    rows = fb.RowSerializer(fb.Schema.of(n="int64"))
    config = fb.ExchangeConfig(max_buffers_per_channel=2, buffer_timeout_s=0)
    with fb.ShuffleEnvironment(segments=200, segment_size=64) as env:
        recorder = Recorder(env.monitor.exchanges)
        gates, writers = [], []
        for policy in ("drop", "disconnect", "drop_oldest"):
            gates.append(env.create_input_gate(rows, channels=1, on_peer_loss="forget"))
            made = env.create_result_partition(
                rows, gates[-1:], selector=fb.broadcast(), config=config, on_slow_consumer=policy
            )
            writers.append(made)
            made.emit_many([(n,) for n in range(100)])
        objects = fb.PickledSerializer()
        gates.append(env.create_input_gate(objects, channels=1, on_error="skip"))
        writers.append(env.create_result_partition(objects, gates[-1:]))
        writers[-1].emit(NotLoaded())
        writers[-1].flush()
        assert gates[-1].poll(0) is None
        writers[0].abort("enough")
        while not gates[0].lost:
            gates[0].poll(0.1)
        while gates[2].stats()["records_missed"] < writers[2].stats()["records_dropped"]:
            gates[2].poll(0.1)
        recorder.look()
        figures = [made.stats() for made in (*writers, *gates)]
        measured = measure(recorder)[LOSSES]
        kinds = tuple(WORDS)
        totals = {kind: sum(value for labels, value in measured.items() if labels[2] == kind) for kind in kinds}
        assert totals == {kind: sum(each.get(kind, 0) for each in figures) for kind in kinds}
        assert totals["buffers_dropped"] > 1
        assert totals["records_dropped"] == totals["records_missed"] > 1
        assert (totals["consumers_cut"], totals["producers_lost"], totals["skipped"]) == (1, 1, 1)
        for end in (*writers, *gates):
            end.close()
    env.pool.audit()


def test_the_page_names_the_same_losses() -> None:
    page = (resources.files("fastbuf.monitor") / "page" / "tasks.js").read_text()
    assert f"const LOSSES = {json.dumps(list(WORDS.items()))};" in page


def test_the_how_to_names_every_metric() -> None:
    page = Path(__file__).parents[3] / "docs" / "howto" / "watch-a-job.md"
    assert set(re.findall(r"`(fastbuf_\w+)`", page.read_text())) == NAMES


def test_no_label_has_a_value_for_each_pair_of_tasks() -> None:
    one, two = (len(exposition(Recorder(lambda n=n: [monitored.many(n)])).splitlines()) for n in (50, 100))  # type: ignore[misc]
    assert two < 2.1 * one


def test_opentelemetrys_instruments_tell_the_same() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="pip install opentelemetry-sdk")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    recorder = Recorder(monitored.two_in_a_row, queries=lambda: [monitored.a_stream()])
    reader = InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    instrument(recorder, provider)
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    assert set(found) == {metric.name.replace("_", ".") for metric in METRICS}
    for metric, values in measure(recorder).items():
        points = found[metric.name.replace("_", ".")].data.data_points
        assert {tuple(p.attributes[label] for label in metric.labels): p.value for p in points} == values
        assert getattr(found[metric.name.replace("_", ".")].data, "is_monotonic", False) is (metric.kind == COUNTER)
    provider.shutdown()


@pytest.mark.parametrize(
    ("hidden", "call", "extra"),
    [("opentelemetry", instrument, "otel"), ("prometheus_client", exposition, "monitor")],
)
def test_without_the_package_it_says_what_to_install(
    hidden: str, call: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == hidden]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(ConfigError, match=rf"fastbuf\[{extra}\]"):
        call(Recorder(list))


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are() -> None:
    board = json.loads((resources.files("fastbuf.monitor") / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [variable["definition"] for variable in board["templating"]["list"] if "definition" in variable]
    found = {name for expression in asked for name in re.findall(r"fastbuf_\w+", expression)}
    assert found == NAMES, "each metric is shown, and no other is asked for"
    labels = {metric.name + ("_total" if metric.kind == COUNTER else ""): set(metric.labels) for metric in METRICS}
    for panel in board["panels"]:
        for target in panel["targets"]:
            (name,) = set(re.findall(r"fastbuf_\w+", target["expr"]))
            used = set(re.findall(r"(\w+)=~?\"", target["expr"])) | set(
                re.findall(r"{{(\w+)}}", target["legendFormat"])
            )
            used |= {
                label.strip() for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(",")
            }
            assert used <= labels[name], (panel["title"], used)
