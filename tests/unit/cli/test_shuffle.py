"""What ``fastbuf shuffle`` refuses before Spark is started."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from fastbuf.cli.app import cli
from fastbuf.cli.shuffle import find_function
from fastbuf.errors import ConfigError


def test_functions_are_found_by_name() -> None:
    from fastbuf.cli import delays

    assert find_function("fastbuf.cli.delays:clean") is delays.clean


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("json", "MODULE:FUNCTION"),
        (":dumps", "MODULE:FUNCTION"),
        ("json:", "MODULE:FUNCTION"),
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
