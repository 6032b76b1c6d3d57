# What a channel's writer and reader need of any serializer: one record to bytes, and back.
#
# A tail: the bytes at a record's end, when they are many.  They are not moved through an encoder or a decoder, but
# copied once to where they go: out of the bytes object that the record has into segments, piece by piece, and out of
# segments into the bytes object of the record that is made.  The payload is the same, with a tail or without.
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

cdef enum:
    LEAST_TAIL = 4096           # shorter bytes go with the rest of their record


cdef class Serializer:
    cdef readonly str kind                        # "row" | "columnar" | "pickled"
    cdef readonly unsigned long long fingerprint  # the schema's; 0 when there is none
    cdef readonly object schema                   # Schema or None
    cdef readonly bint checksum                   # blocks of dumps carry a CRC32C

    cdef readonly Py_ssize_t tail_head            # bytes of a payload that say where its tail begins; 0: no tails

    # Writes the payload of one record at dst and returns the bytes it takes.  A result > room: nothing useful was
    # written; call again with that room.  The GIL is held; user code may run (a property, a __reduce__).
    cdef Py_ssize_t encode_record(self, object record, uint8_t *dst, Py_ssize_t room) except -1
    # The record of one payload.  Copies out: src may be recycled as soon as this returns.
    cdef object decode_record(self, const uint8_t *src, Py_ssize_t length)

    # As encode_record, but without the record's tail, if it has one: `tail`, which the caller has set to NULL, is then a
    # new reference to it, and its bytes come behind those that the result counts.
    cdef Py_ssize_t encode_head(self, object record, uint8_t *dst, Py_ssize_t room, PyObject **tail) except -1
    # Appends the records of the elements (u32 length | payload) that are whole in src; -> how many bytes those are.
    # Stops before one that is not whole, or longer than `longest`.
    cdef Py_ssize_t decode_elements(self, const uint8_t *src, Py_ssize_t length, Py_ssize_t longest,
                                    list records) except -1
    # Where the tail of a payload of `size` bytes begins, of which the first `tail_head` are at `head`; -1: it has none.
    cdef Py_ssize_t tail_at(self, const uint8_t *head, Py_ssize_t size) noexcept
    # The record of a payload in two parts, which were cut where tail_at says; may alter the head.
    cdef object decode_with_tail(self, uint8_t *head, Py_ssize_t length, bytes tail)
