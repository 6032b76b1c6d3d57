# PySpark's portable_hash of Python objects.
cdef Py_hash_t portable(object x) except? -1

# The same, but 0 for what Python hashes by the object's address, alone or in tuples: NaN (from Python 3.10 on), and
# objects of classes without a hash of their own.  So it is one number in all processes, and for a record read again.
cdef Py_hash_t portable_by_value(object x) except? -1
