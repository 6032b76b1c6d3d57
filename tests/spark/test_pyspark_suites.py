"""PySpark's own tests of the verbs that fastbuf has: what Spark passes, fastbuf does, but for what is listed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from javas import OPTIONS
from nights import nightly
from pyspark_suites import unpacked

HERE = Path(__file__).resolve().parent
TOOK_S = 3600  # all of them in one mode; minutes on a quiet machine

#: What fastbuf fails in every mode and Spark does not, as ``module.test``, in any class of the module: by its reason
LISTED = {
    "a result that has __getitem__ alone is no iterator": (
        "arrow_map.test_map_in_arrow_legacy_accept_sequence_protocol",
        "pandas_map.test_map_in_pandas_legacy_accept_sequence_protocol",
    ),
    "map_in_pandas takes no list for an iterator": (
        "pandas_map.test_map_in_pandas_accept_any_iterable_by_default",
        "pandas_map.test_map_in_pandas_legacy_accept_any_iterable",
    ),
    "barrier= is not taken": (
        "arrow_map.test_map_in_arrow_with_barrier_mode",
        "pandas_map.test_map_in_pandas_with_barrier_mode",
    ),
    "an error of ours has another text or class than Spark's": (
        "arrow_map.test_nullability_widen",
        "arrow_map.test_other_than_recordbatch_iter",
        "arrow_map.test_top_level_wrong_order",
        "pandas_map.test_other_than_dataframe_iter",
        "arrow_grouped_map.test_apply_in_arrow_not_returning_arrow_table",
        "arrow_grouped_map.test_apply_in_arrow_returning_empty_dataframe_and_wrong_column_names",
        "arrow_grouped_map.test_apply_in_arrow_returning_wrong_column_count_positional_assignment",
        "arrow_grouped_map.test_apply_in_arrow_returning_wrong_column_names",
        "arrow_grouped_map.test_apply_in_arrow_returning_wrong_types",
        "arrow_grouped_map.test_apply_in_arrow_returning_wrong_types_positional_assignment",
        "pandas_grouped_map.test_wrong_args_in_apply_func",
        "pandas_cogrouped_map.test_apply_in_pandas_returning_no_column_names_and_wrong_amount",
        "pandas_cogrouped_map.test_apply_in_pandas_returning_wrong_column_names",
        "pandas_cogrouped_map.test_different_group_key_cardinality",
        "pandas_cogrouped_map.test_wrong_args",
        "pandas_cogrouped_map.test_wrong_return_type",
    ),
    "group_by needs a key": (
        "arrow_grouped_map.test_apply_in_arrow_empty_groupby",
        "pandas_grouped_map.test_empty_groupby",
        "pandas_grouped_map.test_mixed_scalar_udfs_followed_by_groupby_apply",
        "pandas_grouped_map.test_udf_with_key",
        "pandas_cogrouped_map.test_empty_group_by",
        "pandas_cogrouped_map.test_mixed_scalar_udfs_followed_by_cogrouby_apply",
    ),
    "a column's metadata is written with other blanks": ("arrow_map.test_passing_metadata",),
    "rows are looked at in an order that a shuffle does not promise": (
        "arrow_cogrouped_map_misc.test_with_local_data",
        "pandas_cogrouped_map.test_negative_and_zero_batch_size",
        "pandas_cogrouped_map.test_with_key_left",
        "pandas_cogrouped_map.test_with_key_left_group_empty",
        "pandas_cogrouped_map.test_with_key_right",
        "pandas_cogrouped_map.test_with_key_right_group_empty",
    ),
}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pyspark")
    unpacked(place)
    return place


def outcomes(place: Path, mode: str, result: Path, *modules: str) -> dict[str, str]:
    """What each test failed with; empty: it passed."""
    path = [place, HERE.parents[1], HERE.parents[1] / "bindings", HERE, HERE.parent]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "SPARK_HOME": str(place / "pyspark"),
        "SPARK_SUBMIT_OPTS": OPTIONS,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    run = [sys.executable, HERE / "pyspark_suites.py", mode, result, *modules]
    done = subprocess.run(run, cwd=place, env=environment, capture_output=True, text=True, timeout=TOOK_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(line) for line in result.read_text().splitlines())


@pytest.fixture(scope="session")
def sparks(place: Path) -> dict[str, str]:
    return outcomes(place, "spark", place / "spark.json")


@nightly
@pytest.mark.spark
@pytest.mark.timeout(2 * TOOK_S)
@pytest.mark.parametrize("mode", ["auto", "pipelined", "blocking"])
def test_what_sparks_verbs_pass_ours_do(mode: str, place: Path, sparks: dict[str, str]) -> None:
    ours = outcomes(place, mode, place / f"{mode}.json")
    assert ours.keys() == sparks.keys()
    assert sum(not why for why in sparks.values()) > 150, sparks  # of some 190; the others need another pandas
    failed = {short(name): why[-500:] for name, why in ours.items() if why and not sparks[name]}
    listed = {name for names in LISTED.values() for name in names}
    assert not {name: why for name, why in failed.items() if name not in listed}
    assert not listed - failed.keys(), "these pass now: take them out of the list"


def short(name: str) -> str:
    """``sql.tests.arrow.test_arrow_map.Class.test`` as ``arrow_map.test``."""
    *_, module, _, test = name.split(".")
    return f"{module.removeprefix('test_')}.{test}"
