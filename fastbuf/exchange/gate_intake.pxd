# Map of a gate's intake: decodes buffers, and keeps the batch or the records until they are given out.
#
# Owner: the gate's reader, with the gate's (Python) lock held.  That lock is reentrant: code that runs while a record
# is decoded (a pickle's, a signal handler's) is in the same thread, and `within` keeps it from reading or freeing the
# gate.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf.exchange.channel_reader cimport ChannelReader, WireChannels
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.exchange.shared_reader cimport SharedLook
from fastbuf.serializers.assemble cimport BatchAssembler
from fastbuf.serializers.element_view cimport ElementView
from fastbuf.serializers.serializer cimport Serializer
from fastbuf.serializers.spanning cimport SpanningReader

cdef enum:
    LIST_BYTES = 65536          # bytes after which a list of records is given out, so that it is still in the cache
    VIEW_BYTES = 262144         # the same for a lazy view, which makes no record objects


cdef class GateIntake:
    cdef GateCore *core                     # the gate's
    cdef Serializer serializer
    cdef object config
    cdef list readers                       # SpanningReader by channel index
    cdef WireChannels wire                  # made when `core` is set
    cdef list in_place                      # readers of open local and memfd channels.  Guarded by the GIL
    cdef uint32_t locals                    # channels so far whose writer is in this process
    cdef BatchAssembler assembler           # of a columnar serializer
    cdef list records                       # of a row or pickled serializer
    cdef ElementView elements               # of a lazy gate: encoded records; else None
    cdef Py_ssize_t list_bytes              # LIST_BYTES or VIEW_BYTES, batch_bytes at most
    cdef Py_ssize_t batch_rows              # from the configuration
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t record_bytes            # encoded bytes of the records that wait
    cdef object event                       # to be given out after the records that wait
    cdef object error                       # to be raised after them
    cdef object on_error                    # what becomes of a record that cannot be decoded: None: the gate fails
    cdef dict peers                         # channel -> where its producer is.  Guarded by the GIL
    cdef int64_t first_row_ns               # when the oldest row that waits arrived
    cdef int64_t linger_ns                  # how long it may wait: the shortest buffer timeout of the rows' producers
    cdef int64_t flush_due_ns               # when an unfilled buffer is next due to be read in place; negative: never
    cdef unsigned long within               # thread that is decoding, 0: none.  Guarded by the GIL
    cdef uint32_t turn                      # which of `in_place` is read first
    cdef uint64_t records_in                # given out
    cdef dict lost                          # why producers were lost in whose place no other came, by channel number
    cdef uint64_t losses                    # producers lost so far
    cdef uint64_t cut                       # elements of them of which a part came; they are dropped
    cdef uint64_t stored                    # bytes that blocking partitions had stored at the last drain

    cdef SpanningReader fresh(self)
    cdef SpanningReader reader(self, uint32_t index)
    cdef int connected(self, InputChannel *c, str peer) except -1
    cdef int take_in(self, InputChannel *c, const uint8_t *data, uint32_t length) except -1
    cdef int take_records(self, InputChannel *c, SpanningReader reader) except -1
    cdef int refuse_record(self, InputChannel *c, SpanningReader reader, error) except -1
    cdef str producer(self, InputChannel *c)
    cdef bint flush_is_due(self, InputChannel *c, int64_t now) noexcept
    cdef int drain(self, int64_t now) except -1
    cdef int read(self, ChannelReader r, bint partial) except -1
    cdef int read_in_place(self, ChannelReader r, int64_t now) except -1
    cdef int look(self, int64_t now) noexcept
    cdef int read_left(self, ChannelReader r, bytes text) except -1
    cdef int miss(self, InputChannel *c, uint64_t records) except -1
    cdef int lose(self, InputChannel *c, bytes text) except -1
    cdef bint will_give(self) noexcept
    cdef int hints(self, SharedLook *looks) noexcept
    cdef bint enough(self) noexcept
    cdef Py_ssize_t waiting(self) noexcept
    cdef int fail(self, error) except -1
    cdef int raise_error(self) except -1
    cdef object give_out(self)
    cdef object taken(self)
    cdef object take_event(self)
    cdef void forget(self)
