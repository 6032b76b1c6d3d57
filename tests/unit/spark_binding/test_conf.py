"""The settings of the Spark binding."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import MAX_RECORDS, ShuffleConf
from fastbuf_spark.driver.pipeline import _halved


def test_defaults_are_those_of_the_core() -> None:
    conf = ShuffleConf()
    assert (conf.memory_bytes, conf.segment_size, conf.segments) == (64 << 20, 32 << 10, 2048)
    assert conf.exchange().buffer_timeout_s == 0.1
    assert pickle.loads(pickle.dumps(conf)) == conf


def test_settings_of_spark_are_read_with_their_units() -> None:
    conf = ShuffleConf.from_settings(
        {
            "spark.fastbuf.memoryBytes": "16m",
            "spark.fastbuf.segmentSize": "16k",
            "spark.fastbuf.bufferTimeout": "250ms",
            "spark.fastbuf.stallTimeout": "2min",
            "spark.fastbuf.checksum": "true",
            "spark.fastbuf.exclusive": "3",
            "spark.master": "local[2]",
        }
    )
    assert (conf.memory_bytes, conf.segment_size, conf.segments) == (16 << 20, 16 << 10, 1024)
    assert (conf.buffer_timeout, conf.stall_timeout, conf.checksum, conf.exclusive) == (0.25, 120.0, True, 3)


def test_it_is_known_whether_the_memory_was_set() -> None:
    """For rows, keys and values that a task holds there is another default."""
    unset = ShuffleConf(checksum=True)
    assert unset.held_bytes(lambda name, default: default) == 512 << 20
    assert unset.held_bytes({"spark.python.worker.memory": "1g"}.get) == 1 << 30
    assert _halved(unset).held_bytes(lambda name, default: default) == 512 << 20
    assert ShuffleConf(memory_bytes="1m").held_bytes(lambda name, default: default) == 1 << 20
    assert not unset.memory_was_set
    assert not dataclasses.replace(unset, exclusive=3).memory_was_set
    assert not pickle.loads(pickle.dumps(unset)).memory_was_set
    for given in (ShuffleConf(memory_bytes="64m"), ShuffleConf.from_settings({"spark.fastbuf.memoryBytes": "64m"})):
        assert given.memory_was_set
        assert given.memory_bytes == unset.memory_bytes


@pytest.mark.parametrize(
    ("session", "given", "rows", "most"),
    [
        ("500", ShuffleConf(), 500, 500),
        ("500", ShuffleConf(batch_rows=20), 20, 20),
        ("10000", ShuffleConf(), 10_000, None),
        ("0", ShuffleConf(), 10_000, None),
        ("-1", ShuffleConf(), 10_000, None),
        ("0", ShuffleConf(batch_rows=10_000), 10_000, 10_000),
    ],
)
def test_batches_have_the_rows_of_sparks_own(session: str, given: ShuffleConf, rows: int, most: int | None) -> None:
    """At Spark's default, and without a limit, they may have some more."""
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get={MAX_RECORDS: session}.__getitem__))
    conf = pickle.loads(pickle.dumps(ShuffleConf.of(spark, given)))
    assert (conf.batch_rows, conf.most_rows) == (rows, most)


def test_minus_one_is_a_buffer_timeout() -> None:
    assert ShuffleConf.from_settings({"spark.fastbuf.bufferTimeout": "-1"}).buffer_timeout == -1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("spark.fastbuf.memoryByte", "1m", "is not a setting"),
        ("spark.fastbuf.memoryBytes", "lots", "whole number"),
        ("spark.fastbuf.memoryBytes", "64k", "at least 8"),
        ("spark.fastbuf.checksum", "yes", "true or false"),
        ("spark.fastbuf.maxRowBytes", "-1", "whole number"),
        ("spark.fastbuf.bufferTimeout", "soon", "seconds"),
        ("spark.fastbuf.transport", "pigeon", "one of auto"),
        ("spark.fastbuf.exclusive", "0", "exclusive"),
        ("spark.fastbuf.portMin", "9", "port_min"),
        ("spark.fastbuf.segmentSize", "10", "from 64 to 1073741824"),
    ],
)
def test_wrong_settings_are_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ShuffleConf.from_settings({name: value})


def test_texts_are_understood_in_the_constructor_as_in_sparks_settings() -> None:
    conf = ShuffleConf(memory_bytes="16m", segment_size="16k", buffer_timeout="250ms", stall_timeout="2min")  # type: ignore[arg-type]
    assert (conf.memory_bytes, conf.segment_size, conf.segments) == (16 << 20, 16 << 10, 1024)
    assert (conf.buffer_timeout, conf.stall_timeout) == (0.25, 120.0)
    assert ShuffleConf(checksum="true").checksum is True  # type: ignore[arg-type]
    assert conf == ShuffleConf(16 << 20, 16 << 10, buffer_timeout=0.25, stall_timeout=120)


def test_integers_of_other_kinds_become_pythons() -> None:
    conf = ShuffleConf(memory_bytes=np.int64(1 << 20), exclusive=np.uint8(3), stall_timeout=np.float32(2.5))  # type: ignore[arg-type]
    assert [type(v) for v in (conf.memory_bytes, conf.exclusive, conf.stall_timeout)] == [int, int, float]
    assert type(ShuffleConf(stall_timeout=3).stall_timeout) is float


WRONG_TYPES = {
    "int": [1.5, True, np.True_, None, b"1", [1], "1.5", ""],
    "float": [True, np.True_, None, math.nan, math.inf, "1 day", [1]],
}
WRONG_TYPES |= {"bool": [1, 0, None, "yes"], "str": [1, None, True]}
WRONG_TYPES |= {"Mapping[str, str]": []}  # which is not shown: test_store_options.py


@pytest.mark.parametrize("field", dataclasses.fields(ShuffleConf), ids=lambda field: field.name)
def test_every_field_checks_its_type_and_says_what_it_was_given(field: dataclasses.Field[Any]) -> None:
    for value in WRONG_TYPES[str(field.type)]:
        with pytest.raises(ConfigError, match=re.escape(f"{field.name} is {value!r}")):
            ShuffleConf(**{field.name: value})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("segment_size", 63, "from 64 to 1073741824"),
        ("segment_size", 1 << 31, "from 64"),
        ("segment_size", 1032, "a multiple of 64 bytes from 64 to 1073741824, as 1024 or 1088"),
        ("memory_bytes", -1, "of at least 1"),
        ("exclusive", 0, "of at least 1"),
        ("floating", -1, "of at least 0"),
        ("overdraft", -1, "of at least 0"),
        ("max_buffers_per_channel", 1025, "from 1 to 1024"),
        ("max_record_bytes", 1 << 31, "from 1 to 2147483647"),
        ("max_record_bytes", 0, "from 1 to"),
        ("max_row_bytes", -1, "of at least 0"),
        ("batch_rows", 0, "of at least 1"),
        ("batch_bytes", 0, "of at least 1"),
        ("driver_port", 65536, "from 0 to 65535"),
        ("port_max", -1, "from 0 to 65535"),
        ("buffer_timeout", -2, "-1"),
        ("stall_timeout", 0, "above 0 seconds"),
        ("connect_timeout", -1.5, "above 0 seconds"),
    ],
)
def test_every_range(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is {value}.*{words}"):
        ShuffleConf(**{name: value})
