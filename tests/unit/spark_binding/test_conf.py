"""The settings of the Spark binding."""

from __future__ import annotations

import pickle

import pytest

from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf


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


def test_minus_one_is_a_buffer_timeout() -> None:
    assert ShuffleConf.from_settings({"spark.fastbuf.bufferTimeout": "-1"}).buffer_timeout == -1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("spark.fastbuf.memoryByte", "1m", "is no setting"),
        ("spark.fastbuf.memoryBytes", "lots", "whole number"),
        ("spark.fastbuf.memoryBytes", "64k", "at least 8"),
        ("spark.fastbuf.checksum", "yes", "true or false"),
        ("spark.fastbuf.maxRowBytes", "-1", "whole number"),
        ("spark.fastbuf.bufferTimeout", "soon", "seconds"),
        ("spark.fastbuf.transport", "pigeon", "one of auto"),
        ("spark.fastbuf.exclusive", "0", "exclusive"),
        ("spark.fastbuf.portMin", "9", "port_min"),
        ("spark.fastbuf.segmentSize", "10", "1024"),
    ],
)
def test_wrong_settings_are_refused_by_name(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ShuffleConf.from_settings({name: value})
