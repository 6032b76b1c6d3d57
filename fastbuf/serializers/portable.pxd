# PySpark's portable_hash of Python objects.
cdef Py_hash_t portable(object x) except? -1

# The same, but 0 for objects that Python hashes by address, alone or in tuples: NaN (since Python 3.10), and objects of
# classes without a hash of their own.  So the result is equal in all processes, and for a record read again.
cdef Py_hash_t portable_by_value(object x) except? -1
