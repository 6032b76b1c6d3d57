"""``fastbuf shuffle``: a user's file through a user's function."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from fastbuf.cli.places import Place
from fastbuf.errors import ConfigError, text_of

if TYPE_CHECKING:
    from fastbuf_spark.api.pipelines import Pipeline


def find_function(name: str) -> Callable[..., Any]:
    """Import ``module:function``; the current directory is searched too.

    Raises
    ------
    ConfigError
        The name has another form, the module cannot be imported, or it has no such function.
    """
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name or module_name.startswith("."):
        raise ConfigError(f"{name!r} is not MODULE:FUNCTION, as in my_stages:clean")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise
        raise ConfigError(f"there is no module {module_name} in {Path.cwd()} or on the Python path") from error
    except OSError as error:
        where = "; FASTBUF_TRACEBACK=1 shows where"
        raise ConfigError(f"{module_name} cannot be imported: {text_of(type(error), error)}{where}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        there = ", ".join(n for n, v in vars(module).items() if callable(v) and not n.startswith("_")) or "none"
        raise ConfigError(f"{module_name} has no function {function_name}; it has: {there}")
    return function


def check_target(source: Path | None, target: Path, overwrite: bool) -> Path:
    """The target without links in its path: what a link points to is replaced, and the link stays.

    Raises
    ------
    ConfigError
        It is there already, or to replace it would delete the source or the current directory.
    """
    try:
        resolved = target.resolve()
    except RuntimeError as error:  # links that lead to each other
        raise ConfigError(f"{target} cannot be made: {error}") from error
    above = next((folder for folder in resolved.parents if folder.exists()), resolved)
    if not above.is_dir():
        raise ConfigError(f"{target} cannot be made, as {above} is a file: choose another name")
    if not resolved.exists():
        return resolved
    if not overwrite:
        raise ConfigError(f"{target} is already there: choose another name, or say --overwrite")
    read = source.resolve() if source is not None else None  # of another file system
    linked = [path.resolve() for path in read.rglob("*") if path.is_symlink()] if read and read.is_dir() else []
    if read and (any(path.is_relative_to(resolved) for path in (read, *linked)) or resolved.is_relative_to(read)):
        raise ConfigError(f"--overwrite would delete what is read, {source}, with {target}: choose another name")
    if Path.cwd().is_relative_to(resolved):
        raise ConfigError(f"--overwrite would delete the current directory with {target}: choose another name")
    return resolved


def checked_keys(source: Place, keys: Sequence[str]) -> list[str]:
    """The keys as Spark takes them: a column whose name has a dot is quoted.

    Raises
    ------
    ConfigError
        A key is no column of the source, nor a field in one; said before Spark is started.
    """
    columns = source.columns()
    names = {column.casefold() for column in columns}
    lacking = [
        key
        for key in keys
        if not key.startswith("`") and not {key.casefold(), key.partition(".")[0].casefold()} & names
    ]
    if lacking:
        raise ConfigError(f"{source.where} has no column {', '.join(lacking)}; it has: {', '.join(columns) or 'none'}")
    return [f"`{key.replace('`', '``')}`" if key in columns and "." in key else key for key in keys]


def run(
    console: Console,
    *,
    source: str,
    target: str,
    keys: Sequence[str],
    partitions: int,
    func: str,
    schema: str | None,
    before: str | None,
    before_schema: str | None,
    mode: str,
    master: str,
    overwrite: bool,
) -> int:
    """Read ``source``, shuffle it by ``keys``, and write the results of ``func`` for each partition to ``target``."""
    if before_schema and not before:
        raise ConfigError("--before-schema is what --before gives: say --before too, or --schema for what --func gives")
    origin, place = Place.of(source), Place.of(target)
    if not origin.has():
        raise ConfigError(f"{source} does not exist")
    if place.path is not None and not place.is_delta:
        place = replace(place, where=str(check_target(origin.path, place.path, overwrite)))
    elif place.has() and not overwrite:
        raise ConfigError(f"{target} is already there: choose another name, or say --overwrite")
    # Spark's workers import the function by its module's name, so they need this directory too.  Set it before Spark
    # starts.
    here = str(Path.cwd())
    sys.path.insert(0, here)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    second = find_function(func)
    first = find_function(before) if before else None
    if not (first and before_schema):
        keys = checked_keys(origin, keys)

    import fastbuf_spark as fbs
    from fastbuf.cli.spark import session

    with session("fastbuf shuffle", master) as (spark, log):
        if not master.startswith("local"):
            _ship(spark, [func, before])
        stages = origin.read(spark)
        if first:
            stages = stages.map_in_arrow(first, before_schema or stages.schema)
        stages = stages.shuffle(*keys, partitions=partitions, mode=mode)
        stages = stages.map_in_arrow(second, schema or stages.schema)
        begin = time.perf_counter()
        about = f"{source} -> {partitions} partitions by {', '.join(keys)} (Spark's log: {log})"
        with console.status(escape(about)):
            is_file = place.path is not None and place.path.is_file()
            rows = _in_place_of_a_file(stages, place) if is_file else place.write(stages, place.has())
        seconds = time.perf_counter() - begin
        done = fbs.last_run()
    say = partial(console.print, markup=False, highlight=False, emoji=False)
    say(f"{target}: {rows:,} rows in {partitions} partitions, {seconds:.2f} s.")
    if done is not None:
        say(f"mode {done.mode}: {done.bytes_sent / 1e6:,.1f} MB moved")
        if done.segments:
            say(
                f"at most {done.peak_segments} of {done.segments} segments held by one worker, "
                f"{done.credit_wait_s:.2f} s waited for credit"
            )
    return 0


def _ship(spark: Any, names: list[str | None]) -> None:
    """Send modules that are single files to a cluster's executors; installed packages must be there already."""
    for name in names:
        spec = importlib.util.find_spec(name.partition(":")[0]) if name else None
        if spec and spec.origin and Path(spec.origin).parent == Path.cwd():
            spark.sparkContext.addPyFile(spec.origin)


def _in_place_of_a_file(stages: Pipeline, target: Place) -> int:
    """Write a directory beside the file, and put it there; the number of rows."""
    there = Path(target.where)
    with tempfile.TemporaryDirectory(prefix=".fastbuf-shuffle-", dir=there.parent) as beside:
        file = Path(beside) / "made"
        rows = stages.write_parquet(str(file)).rows
        there.unlink()
        file.rename(there)
    return rows
