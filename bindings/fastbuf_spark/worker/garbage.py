"""Python's garbage collector in a worker: it leaves out the modules.

Spark has a worker collect garbage after each task, before it takes the next one.  NumPy, PyArrow, pandas and Spark are
80,000 objects, none of them garbage: to look at them takes as long as the whole of a small task.
"""

from __future__ import annotations

import gc
import sys

from fastbuf_spark.pyspark_private import in_worker

_modules = 0  # how many modules there were when they were left out


def leave_out_modules() -> None:
    """In a worker: have the collector leave out the objects that exist (``gc.freeze``), if there are new modules.

    To be called before the function of a task is unpickled: what earlier tasks left has been collected then.
    """
    global _modules
    if in_worker() and len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.freeze()
