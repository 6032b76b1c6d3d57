"""What ``fastbuf shuffle`` refuses before Spark is started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from fastbuf.cli.app import cli
from fastbuf.cli.places import Place
from fastbuf.cli.shuffle import _in_place_of_a_file, check_target, checked_keys, find_function
from fastbuf.cli.spark import session
from fastbuf.errors import ConfigError, ResourceError


def test_functions_are_found_by_name() -> None:
    from fastbuf.cli import delays

    assert find_function("fastbuf.cli.delays:clean") is delays.clean


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("json", "MODULE:FUNCTION"),
        (":dumps", "MODULE:FUNCTION"),
        ("json:", "MODULE:FUNCTION"),
        (".json:dumps", "MODULE:FUNCTION"),
        ("no_such_module_here:f", "no module no_such_module_here"),
        ("json:no_such_function", "has no function no_such_function; it has: .*dumps"),
    ],
)
def test_names_that_are_none(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        find_function(name)


def test_an_import_error_inside_the_module_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_stage.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        find_function("broken_stage:f")


def test_a_module_that_the_system_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reads_a_file.py").write_text("open('/no/such/file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"reads_a_file cannot be imported: .*/no/such/file"):
        find_function("reads_a_file:f")


def test_a_target_that_is_there_is_kept(tmp_path: Path) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    source.write_bytes(b"")
    target.write_bytes(b"precious")
    result = CliRunner().invoke(
        cli, ["shuffle", str(source), str(target), "--key", "k", "--partitions", "2", "--func", "json:dumps"]
    )
    assert result.exit_code == 1
    assert "already there" in result.output
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("content", "key", "says"),
    [
        (pa.table({"user": ["a"], "amount": [1.0]}), "usr", "has no column usr; it has: user, amount"),
        (None, "user", "cannot be read as Parquet"),
    ],
)
def test_a_source_without_the_key(
    content: pa.Table | None, key: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # restores what the command adds
    monkeypatch.setenv("PYTHONPATH", "")
    if content is None:
        Path("in.parquet").write_bytes(b"no Parquet")
    else:
        pq.write_table(content, "in.parquet")
    result = CliRunner().invoke(
        cli, ["shuffle", "in.parquet", "out.parquet", "--key", key, "--partitions", "2", "--func", "json:dumps"]
    )
    assert result.exit_code == 1
    assert says in result.output


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("data/in.parquet", ".", "delete what is read"),
        ("data/in.parquet", "data", "delete what is read"),
        ("data/in.parquet", "link", "delete what is read"),
        ("data", "data/in.parquet", "delete what is read"),
        ("data", "data", "delete what is read"),
        ("links", "data", "delete what is read"),
        ("/dev/null", "..", "delete the current directory"),
    ],
)
def test_a_target_with_the_source_or_this_directory_is_refused(
    source: str, target: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "data").mkdir(parents=True)
    (here / "data" / "in.parquet").write_bytes(b"precious")
    (here / "link").symlink_to("data")
    (here / "links").mkdir()
    (here / "links" / "in.parquet").symlink_to("../data/in.parquet")
    monkeypatch.chdir(here)
    with pytest.raises(ConfigError, match=says):
        check_target(Path(source), Path(target), True)


class Stages:
    """A pipeline that writes three rows."""

    def write_parquet(self, path: str, mode: str = "error") -> Stages:
        written = Path(path)
        assert written.exists() <= (mode == "overwrite")
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir()
        pq.write_table(pa.table({"x": [1, 2, 3]}), written / "part-0.parquet")
        return self

    rows = 3


@pytest.mark.parametrize("kept", ["directory", "file", "nothing"])
def test_what_a_link_points_to_is_replaced(kept: str, tmp_path: Path) -> None:
    link, behind = tmp_path / "out.parquet", tmp_path / "disk" / "out-1.parquet"
    behind.parent.mkdir()
    if kept == "directory":
        behind.mkdir()
        (behind / "part-0.parquet").write_bytes(b"old")
    elif kept == "file":
        behind.write_bytes(b"old")
    link.symlink_to(behind)
    (behind.parent / ".out-1.parquet.new").mkdir()  # the user's own
    place = Place.of(str(check_target(tmp_path / "in.parquet", link, True)))
    stages = cast(Any, Stages())
    assert (_in_place_of_a_file(stages, place) if kept == "file" else place.write(stages, place.has())) == 3
    assert link.is_symlink()
    assert pq.read_table(link).num_rows == 3
    assert sorted(path.name for path in behind.parent.iterdir()) == [".out-1.parquet.new", "out-1.parquet"]


def test_errors_of_the_way_to_java_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.protocol import Py4JNetworkError

    def lost(*_: object, **__: object) -> int:
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr("fastbuf.cli.doctor.run", lost)
    result = CliRunner().invoke(cli, ["doctor"])
    assert (result.exit_code, result.output) == (1, "Error: Answer from Java side is empty\n")


def test_an_error_at_sparks_start_names_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    def refuse(builder: object) -> SparkSession:
        raise RuntimeError("Could not parse Master URL: 'x'\n\tat org.apache.spark.SparkContext")

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", refuse)
    match = r"Master URL: 'x'; its log is .*fastbuf-spark-.*\.log"
    with pytest.raises(ResourceError, match=match) as raised, session("x", "x"):
        pass
    Path(str(raised.value).partition("its log is ")[2].partition(";")[0]).unlink()


def test_a_target_below_a_file_is_refused(tmp_path: Path) -> None:
    """Before Spark is started, which would say so with Java's stack."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"out cannot be made, as .*/file is a file"):
        check_target(tmp_path / "in", tmp_path / "file" / "more" / "out", False)


def test_a_schema_of_a_stage_that_is_none(tmp_path: Path) -> None:
    given = ["shuffle", str(tmp_path), str(tmp_path / "out"), "--key", "k", "--partitions", "2", "--func", "json:dumps"]
    result = CliRunner().invoke(cli, [*given, "--before-schema", "k long"])
    assert result.exit_code == 1
    assert "say --before too" in result.output


def test_targets_that_are_no_place(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(ConfigError, match=r"one cannot be made: |one is already there"):
        check_target(tmp_path / "in", tmp_path / "one", False)
    with pytest.raises(ConfigError, match="/ is already there"):
        check_target(tmp_path / "in", Path("/"), False)
    with pytest.raises(ConfigError, match="would delete what is read"):
        check_target(tmp_path / "in", Path("/"), True)


def test_a_file_in_a_directory_that_is_named_for_its_column(tmp_path: Path) -> None:
    """Spark reads the file alone; with the directory's value the column would have two types."""
    (tmp_path / "k=a").mkdir()
    source = tmp_path / "k=a" / "in.parquet"
    pq.write_table(pa.table({"k": [1]}), source)
    assert checked_keys(Place.of(str(source)), ["k"]) == ["k"]


def test_keys_are_found_as_spark_finds_them(tmp_path: Path) -> None:
    """In any case, with a dot in the name, and in a struct; a key in quotes is left to Spark."""
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table({"User": [1], "a.b": [1], "s": [{"f": 1}]}), source)
    assert checked_keys(Place.of(str(source)), ["user", "a.b", "s.f", "`a.b`"]) == ["user", "`a.b`", "s.f", "`a.b`"]
    with pytest.raises(ConfigError, match=r"has no column t\.f; it has: User, a\.b, s"):
        checked_keys(Place.of(str(source)), ["user", "t.f"])


def test_places(tmp_path: Path) -> None:
    """A Delta table is known by its log, or by what stands before its path; a URI by its scheme."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.table({"k": [1]}), tmp_path / "in.parquet")
    for before in ("", "file://"):
        assert Place.of(f"{before}{tmp_path}/table").is_delta
        assert not Place.of(f"{before}{tmp_path}/in.parquet").is_delta
        assert Place.of(f"{before}{tmp_path}/in.parquet").columns() == ["k"]
        assert Place.of(f"{before}{tmp_path}/in.parquet").has()
        assert not Place.of(f"{before}{tmp_path}/other").has()
    assert Place.of(f"delta:{tmp_path}/other") == Place(f"{tmp_path}/other", True)
    assert Place.of(f"file://{tmp_path}").path is None
    with pytest.raises(ConfigError, match=r"has credentials"):
        Place.of("s3://someone:secret@bucket/x")


def test_what_is_not_there_or_there_already_is_told_of_uris_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path])
    for source, target, said in (
        (f"file://{tmp_path}/none", "out", "does not exist"),
        (f"file://{tmp_path}/there", f"file://{tmp_path}/there", "is already there"),
        (f"file://{tmp_path}/there", f"delta:{tmp_path}/there", "is already there"),
    ):
        given = ["shuffle", source, target, "--key", "k", "--partitions", "2", "--func", "json:dumps"]
        result = CliRunner().invoke(cli, given)
        assert (result.exit_code, said in result.output) == (1, True), result.output
