"""Spark's ``F.hash`` of columns: Murmur3 x86_32, chained over the columns.

Source: ``org.apache.spark.unsafe.hash.Murmur3_x86_32`` and ``HashExpression`` of Spark; the algorithm is
A. Appleby's MurmurHash3 (SMHasher), with Spark's own handling of the last bytes of a string.
"""

import numpy as np

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from fastbuf.serializers.arrow_abi cimport ArrowArray, ArrowSchema
from fastbuf.serializers.column_plan cimport BoundBatch, ColumnPlan, array_of, plan_of, schema_of
from fastbuf.serializers.columns cimport *
from fastbuf.serializers.partition cimport check_hashable

from fastbuf.errors import SchemaError

cdef dict _NUMPY = {
    "int8": FB_HASH_INT8,
    "uint8": FB_HASH_UINT8,
    "int16": FB_HASH_INT16,
    "uint16": FB_HASH_UINT16,
    "int32": FB_HASH_INT32,
    "uint32": FB_HASH_UINT32,
    "int64": FB_HASH_INT64,
    "float32": FB_HASH_FLOAT,
    "float64": FB_HASH_DOUBLE,
    "datetime64[us]": FB_HASH_INT64,
    "timedelta64[us]": FB_HASH_INT64,
}


cdef int _hash_numpy(object column, uint32_t[::1] hashes, Py_ssize_t place) except -1:
    # Hashes one NumPy column, with the hashes so far as seeds: a plan of a single node.
    cdef fb_node node
    cdef fb_column c
    cdef const uint8_t[::1] view
    memset(&node, 0, sizeof(node))
    memset(&c, 0, sizeof(c))
    name = column.dtype.name
    if name == "datetime64[D]":  # NumPy counts days in 64 bits, Spark in 32
        column, name = column.astype(np.int64).astype(np.int32), "int32"
    if name == "bool":
        column, name = np.packbits(column, bitorder="little"), "bool"
        node.kind, node.hash, node.width = FB_BOOL, FB_HASH_BOOL, 0
    elif name in _NUMPY and column.dtype.isnative:
        node.kind, node.hash, node.width = FB_FIXED, _NUMPY[name], column.dtype.itemsize
    else:
        raise SchemaError(
            f"column {place} is a NumPy array of {column.dtype}, which cannot be hashed as Spark does: give an Arrow "
            "array, or cast it"
        )
    node.next = 1
    view = np.ascontiguousarray(column).view(np.uint8)
    if view.shape[0] == 0:
        return 0
    c.values = &view[0]
    c.rows = hashes.shape[0]
    with nogil:
        fb_hash_chain(&node, &c, 0, &hashes[0], hashes.shape[0])
    return 0


cdef int _hash_arrow(object column, uint32_t[::1] hashes) except -1:
    # A batch is hashed field by field; any other array becomes the only column of a batch made here, so that a struct
    # array may have nulls.
    cdef ArrowSchema outer_schema
    cdef ArrowArray outer
    cdef ArrowSchema *inner_schema
    cdef ArrowArray *inner
    cdef const void *no_validity = NULL
    cdef ColumnPlan plan
    cdef BoundBatch batch
    cdef int k = 1
    schema, array = column.__arrow_c_array__()
    inner_schema = <ArrowSchema *> schema_of(schema)
    inner = <ArrowArray *> array_of(array)
    if <bytes> inner_schema.format == b"+s" and inner.n_buffers == 1 and inner.buffers[0] == NULL:
        plan = plan_of(inner_schema)
        batch = BoundBatch(plan)
        batch.bind_array(inner)
    else:
        memset(&outer_schema, 0, sizeof(outer_schema))
        memset(&outer, 0, sizeof(outer))
        outer_schema.format, outer_schema.n_children, outer_schema.children = b"+s", 1, &inner_schema
        outer.length, outer.n_buffers, outer.buffers = inner.length, 1, &no_validity
        outer.n_children, outer.children, outer.release = 1, &inner, inner.release
        plan = plan_of(&outer_schema)
        batch = BoundBatch(plan)
        batch.bind_array(&outer)
    while k < plan.n_nodes:
        check_hashable(plan, k)
        if hashes.shape[0]:
            with nogil:
                fb_hash_chain(batch.c.nodes, batch.c.cols, k, &hashes[0], hashes.shape[0])
        k = plan.nodes[k].next
    return 0


def murmur3_hash(columns, seed=42):
    """Hash each row over all columns, as Spark's ``F.hash(*columns)``.

    The hash of one column is the seed of the next; a null leaves the hash unchanged.

    Parameters
    ----------
    columns : pyarrow.RecordBatch, or a list of Arrow arrays (``__arrow_c_array__``) and NumPy arrays
        All of one length. NumPy: bool, integers up to 64 bits signed and 32 bits unsigned, float32, float64,
        datetime64 and timedelta64 of microseconds, datetime64 of days. An unsigned column is hashed as the
        Spark type that holds all its values.
    seed : int, default 42
        32 bits.

    Returns
    -------
    ndarray
        int32, of shape (rows,).

    Raises
    ------
    SchemaError
        Spark does not have or does not hash the type.
    """
    if hasattr(columns, "__arrow_c_array__") or isinstance(columns, np.ndarray):
        columns = [columns]
    hashes = None
    for place, column in enumerate(columns):
        if isinstance(column, np.ndarray):
            if column.ndim != 1:
                raise ValueError(f"column {place} has the shape {column.shape}: a column has one dimension")
            rows = column.shape[0]
        elif hasattr(column, "__arrow_c_array__"):
            rows = len(column)
        else:
            raise TypeError(f"column {place} is a {type(column).__name__}: give an Arrow or a NumPy array")
        if hashes is None:
            hashes = np.full(rows, seed & 0xFFFFFFFF, np.uint32)
        if rows != hashes.shape[0]:
            raise ValueError(f"column {place} has {rows:,} rows, the one before {hashes.shape[0]:,}")
        if isinstance(column, np.ndarray):
            _hash_numpy(column, hashes, place)
        else:
            _hash_arrow(column, hashes)
    if hashes is None:
        raise ValueError("at least one column is needed")
    return hashes.view(np.int32)
