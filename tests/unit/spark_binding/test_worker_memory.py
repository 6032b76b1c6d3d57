"""Under a limit on a worker's addresses: an exchange that fits, or an error with the figures, and never a hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
WORKER = """
import json, resource, sys
from pathlib import Path
import pyarrow
import fastbuf as fb
from fastbuf.errors import ConfigError
from fastbuf_spark.conf import ShuffleConf
from fastbuf_spark.worker.memory import addresses_left, environment

def mapped():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

told = {"before": mapped()}
more, conf = json.loads(sys.argv[1])
if more is not None:
    limit = mapped() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
told["left"] = addresses_left()
try:
    with environment(ShuffleConf(**conf)) as env:
        told["segments"], told["shared"] = env.pool.available, env.shared
        serializer = fb.RowSerializer(fb.Schema.of(n="int64"))
        gate = env.create_input_gate(serializer, channels=1, secret=b"s")
        host, port = env.listen("127.0.0.1")
        # The other end too, over TCP: an I/O thread, a listener and a doorbell more
        with fb.ShuffleEnvironment(segments=64, segment_size=4096) as other:
            writer = other.create_result_partition(serializer, [(host, port, gate.gate_id)], secret=b"s")
            writer.emit_many((k,) for k in range(100))
            writer.finish()
            told["rows"] = len(list(gate))
            told["mapped"] = mapped() - told["before"]
            writer.close()
        gate.close()
except ConfigError as error:
    told["error"] = str(error)
print(json.dumps(told))
"""


def worker(more: int | None, **conf: Any) -> dict[str, Any]:
    """What a worker does that may map ``more`` bytes, beyond what its imports have mapped."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER, json.dumps([more, conf])],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'bindings'}", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_without_a_limit_nothing_is_cut() -> None:
    told = worker(None)
    assert told["left"] is None
    assert told["segments"] == 64 * 32
    assert told["shared"]
    assert told["rows"] == 100


@pytest.mark.parametrize("megabytes", [100, 130, 256])
def test_an_exchange_takes_no_more_than_half_of_what_is_left(megabytes: int) -> None:
    told = worker(megabytes << 20)
    assert told["rows"] == 100
    assert not told["shared"]
    assert told["segments"] == min(2048, (told["left"] - (64 << 20)) // 2 // 32768)
    # Its segments and its threads' stacks; what is left is the user's
    assert told["mapped"] < told["segments"] * 32768 + (64 << 20)


@pytest.mark.parametrize("megabytes", [0, 20, 64])
def test_too_few_addresses_are_an_error_with_the_figures(megabytes: int) -> None:
    told = worker(megabytes << 20)
    assert "spark.executor.pyspark.memory leaves" in told["error"]
    assert f"leaves {told['left'] >> 20} MiB of addresses" in told["error"]
    assert "mode='blocking'" in told["error"]
