"""Spark's daemon of Python workers, which has imported what its workers need before it forks the first of them.

Each worker that fails, or that a test kills, is followed by another, which would spend half a second of a CPU on these
imports.  Tests with a cluster (``clusters.py``) and those of the commands (``tests/system``) have Spark's own daemon.
"""

import gc
import importlib
import os
import sys

# No thread before a fork: OpenBLAS starts one for each CPU, and Arrow's jemalloc one to tidy up.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

NEEDED = ["pandas", "pyarrow.compute", "pyspark.worker", "pyspark.sql.pandas.serializers"]
NEEDED += [f"fastbuf_spark.worker.{name}" for name in ("consumer", "groups", "pairs", "producer")]

if __name__ == "__main__":
    for name in NEEDED:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        sys.exit(f"warm_daemon: {threads} threads after the imports: what forks must have one")
    from pyspark.daemon import manager

    # A worker has Python look for garbage after every task, which would look at all of these modules again
    gc.collect()
    gc.freeze()
    manager()
