"""Base of all serializers: a kind, a schema, and functions that encode and decode one record."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from fastbuf.errors import ConfigError

cdef enum:
    PREFIX = 4                # bytes of the length before each payload


cdef class Serializer:
    """Serializer()\n--\n
    The interface of every serializer; the subclasses say which records they support.

    Attributes
    ----------
    kind : str
        As blocks name it: ``"row"``, ``"columnar"``, ``"pickled"`` and so on.
    schema : Schema or None
        Schema of the records; None if any object is allowed.
    fingerprint : int
        64 bits of the schema, 0 without one: both ends compare it before they exchange data.
    checksum : bool
        Whether blocks carry a CRC32C of their body.
    """

    cdef int check_made(self) except -1:
        if self.kind is None:
            raise ConfigError(f"{type(self).__name__}.__init__ has not called super().__init__")
        return 0

    cdef Py_ssize_t encode_record(self, object record, uint8_t *dst, Py_ssize_t room) except -1:
        raise TypeError(f"{type(self).__name__} does not encode single records")

    cdef void forget(self) noexcept:
        pass

    cdef object decode_record(self, const uint8_t *src, Py_ssize_t length):
        raise TypeError(f"{type(self).__name__} does not decode single records")

    cdef Py_ssize_t encode_head(self, object record, uint8_t *dst, Py_ssize_t room, PyObject **tail) except -1:
        return self.encode_record(record, dst, room)

    cdef Py_ssize_t decode_elements(self, const uint8_t *src, Py_ssize_t length, Py_ssize_t longest,
                                    list records) except -1:
        cdef Py_ssize_t at = 0
        cdef uint32_t size
        while length - at >= PREFIX:
            memcpy(&size, src + at, PREFIX)
            if size > <size_t> longest or length - at - PREFIX < <Py_ssize_t> size:
                break
            records.append(self.decode_record(src + at + PREFIX, size))
            at += PREFIX + <Py_ssize_t> size
        return at

    cdef Py_ssize_t tail_at(self, const uint8_t *head, Py_ssize_t size) noexcept:
        return -1

    cdef object decode_with_tail(self, uint8_t *head, Py_ssize_t length, bytes tail):
        raise TypeError(f"{type(self).__name__} has no tails")

    def encode(self, record):
        """Encode one record.

        Parameters
        ----------
        record : object
            A record of the serializer's schema.

        Returns
        -------
        bytes
            The payload, without length prefix or header.

        Raises
        ------
        RecordError
            The record does not match the schema.
        """
        cdef Py_ssize_t room = 512, size
        cdef bytes out
        self.check_made()
        while True:
            try:
                out = PyBytes_FromStringAndSize(NULL, room)
            except MemoryError:
                self.forget()
                raise
            size = self.encode_record(record, <uint8_t *> PyBytes_AS_STRING(out), room)
            if size == room:
                return out
            if size < room:
                return out[:size]
            room = size

    def decode(self, payload):
        """Decode the result of :meth:`encode`.

        Parameters
        ----------
        payload : bytes-like
            One contiguous payload.

        Raises
        ------
        BlockError
            The payload is truncated or altered.
        """
        cdef const uint8_t[::1] view = memoryview(payload).cast("B")
        cdef Py_ssize_t size = view.shape[0]
        self.check_made()
        if size == 0:
            return self.decode_record(<const uint8_t *> b"", 0)
        return self.decode_record(&view[0], size)
