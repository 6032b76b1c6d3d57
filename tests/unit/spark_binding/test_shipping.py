"""What is shipped says which version it is of, before anything of fastbuf is needed to unpickle it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

import fastbuf
from fastbuf_spark import wire
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.shipping import AsItIs, named
from fastbuf_spark.worker.stage import FusedTask, ShuffleStage

ROOT = Path(__file__).resolve().parents[3]


def lengths(batches: Iterator[Any]) -> Iterator[int]:
    return iter([ShuffleConf().segment_size, *batches])


def unpickled(before: str, shipped: bytes | None = None) -> str:
    """What a worker says that unpickles a function after ``before``: its name and what it gives if it can be called."""
    code = f"""
import sys
sys.path[:0] = {[str(ROOT), str(ROOT / "bindings"), str(Path(__file__).parent)]!r}
{before}
import cloudpickle
stage = cloudpickle.loads(sys.stdin.buffer.read())
print(stage.__name__, list(stage(iter([1]))))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=shipped or cloudpickle.dumps(named(lengths, "it")),
        capture_output=True,
        timeout=60,
    )
    return (done.stdout + done.stderr).decode().strip().splitlines()[-1]


def test_the_same_version_unpickles_to_the_function_itself() -> None:
    assert unpickled("") == f"it [{ShuffleConf().segment_size}, 1]"
    again = cloudpickle.loads(cloudpickle.dumps(named(lengths, "it")))
    assert again.__closure__[0].cell_contents._call is lengths
    assert list(named(lengths, "it")(iter([1]))) == [ShuffleConf().segment_size, 1]


def test_a_worker_without_fastbuf_is_told_so() -> None:
    hidden = "for name in ('fastbuf', 'fastbuf_spark'): sys.modules[name] = None"
    text = unpickled(hidden)
    assert text.startswith(f"ImportError: the driver has fastbuf {fastbuf.__version__}, this worker")
    assert "cannot import it" in text
    assert sys.executable in text
    assert "spark.archives" in text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("import fastbuf; fastbuf.__version__ = '9.9.9'", f"has 9.9.9 (control version {wire.VERSION})"),
        (
            "from fastbuf_spark import wire; wire.VERSION = 77",
            f"has {fastbuf.__version__} (control version 77)",
        ),
    ],
)
def test_another_version_is_named_with_this_one(changed: str, words: str) -> None:
    text = unpickled(f"import fastbuf_spark\n{changed}")
    assert f"the driver has fastbuf {fastbuf.__version__} (control version {wire.VERSION})" in text
    assert words in text


def test_classes_that_another_version_lacks_are_not_what_it_complains_of() -> None:
    text = unpickled("import fastbuf, fastbuf_spark.conf as conf\nfastbuf.__version__ = '0.0.1'\ndel conf.ShuffleConf")
    assert "has 0.0.1" in text


def test_the_bare_barrier_stage_has_the_check_in_front_too() -> None:
    stage = ShuffleStage.__new__(ShuffleStage)
    stage._task = FusedTask(None, iter)  # type: ignore[arg-type]  # what it is of does not matter: it is not run
    shipped = cloudpickle.dumps(stage)
    assert "has 0.0.1" in unpickled("import fastbuf\nfastbuf.__version__ = '0.0.1'", shipped)
    hidden = "for name in ('fastbuf', 'fastbuf_spark'): sys.modules[name] = None"
    assert "cannot import it" in unpickled(hidden, shipped)
    assert callable(cloudpickle.loads(shipped))


LEFT_OUT = """
import gc
{before}
def left_out():
    cloudpickle.loads(cloudpickle.dumps(named(iter, "it")))
    return gc.get_freeze_count()

import cloudpickle
from fastbuf_spark.shipping import named
first, again = left_out(), left_out()
import wave  # any module that is not known yet
print(first > 0, again == first, left_out() > first)
"""


@pytest.mark.parametrize(
    ("before", "printed"),
    [("", "False True False"), ("import pyspark.worker", "True True True")],
    ids=["driver", "worker"],
)
def test_a_worker_leaves_modules_out_of_the_search_for_garbage(before: str, printed: str) -> None:
    """Spark searches after each task; before, a job of 200 tasks into 200 took twice as long."""
    code = f"import sys; sys.path[:0] = {[str(ROOT), str(ROOT / 'bindings')]!r}" + LEFT_OUT.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == printed


def test_large_functions_do_not_stay_in_the_drivers_memory(tmp_path: Path) -> None:
    """They may have a model with them, and exchanges may live as long as their application."""
    sc = SimpleNamespace(_temp_dir=str(tmp_path), _pickled_broadcast_vars=set())
    model = b"x" * (4 << 20)
    kept = [AsItIs(sc, lambda: model) for _ in range(3)]
    kept.append(AsItIs(sc, lambda: len(model)))
    assert len(list(tmp_path.iterdir())) == 2
    assert sum(len(each._pickled) for each in kept) == 0
    assert cloudpickle.loads(cloudpickle.dumps(kept[2]))() == model
    assert cloudpickle.loads(cloudpickle.dumps(kept[3]))() == len(model)
    sc._temp_dir = str(tmp_path / "none")
    assert cloudpickle.loads(cloudpickle.dumps(AsItIs(sc, lambda: model)))() == model
