# PySpark's portable_hash of Python objects.
cdef Py_hash_t portable(object x) except? -1
