"""A driver that writes four files to a store and commits them, with an upload of a fifth that nobody ends.

See test_object_stores.py, which kills it on the way.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.parquet as pq
from object_store import store_at

from fastbuf_spark.driver.commit import Commit
from fastbuf_spark.worker import stores


def main(address: str, path: str, mode: str) -> None:
    system = store_at(address)
    commit = Commit(system, path, mode)
    lost = system.open_output_stream(f"{commit.folder}/0/lost.parquet")
    lost.write(b"x" * (stores.UPLOAD_BYTES + 1))
    written = []
    for value in range(4):
        name = f"{commit.folder}/1/{value}.parquet"
        pq.write_table(pa.table({"x": [value]}), name, filesystem=system)
        written.append(("1", f"{value}.parquet", system.get_file_info(name).size))
    print("commits", flush=True)
    sys.stdin.readline()
    stores.UPLOAD_BYTES = 10  # all files are long ones, which may have uploads that nobody ends
    commit.commit(written)


main(*sys.argv[1:])
