# Map of a gate's intake: buffers in, and the batch or the records that wait to be given out.
#
# Owner: the gate's reader, with the gate's lock (the Python one) held.  That lets the same thread in again: a record's
# own code, and a signal handler while that runs, must neither read the gate nor free it (`within`).
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
    VIEW_BYTES = 262144         # the same of a view, of which no record is made
    LIST_BYTES = 65536          # a list of records made from so many is given out: while it is in the cache


cdef class GateIntake:
    cdef GateCore *core                     # the gate's
    cdef Serializer serializer
    cdef object config
    cdef list readers                       # SpanningReader by channel index
    cdef WireChannels wire                  # made when `core` is set
    cdef list in_place                      # ChannelReader of each other channel, until it ends.  Under the GIL
    cdef uint32_t locals                    # how many channels there have been of writers of this process
    cdef BatchAssembler assembler           # columnar
    cdef list records                       # row, pickled
    cdef ElementView elements               # of a lazy gate, which gives records out as they came; else None
    cdef Py_ssize_t list_bytes              # a list made from so many bytes is given out
    cdef Py_ssize_t batch_rows              # the configuration's
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t record_bytes            # that they came from
    cdef object event                       # comes after what waits to be given out
    cdef int64_t first_row_ns               # when the oldest row that waits to be given out came
    cdef int64_t linger_ns                  # how long it may: the shortest buffer timeout of those whose rows wait
    cdef int64_t flush_due_ns               # when some channel is next read half full in place; negative: none is
    cdef unsigned long within               # thread that takes buffers in just now, 0: none.  Under the GIL
    cdef uint32_t turn                      # which of `in_place` is the first to be looked at
    cdef uint64_t records_in                # given out
    cdef uint64_t stored                    # what blocking partitions had stored when last looked at

    cdef SpanningReader reader(self, uint32_t index)
    cdef int take_in(self, InputChannel *c, const uint8_t *data, uint32_t length) except -1
    cdef bint flush_is_due(self, InputChannel *c, int64_t now) noexcept
    cdef int drain(self, int64_t now) except -1
    cdef int read(self, ChannelReader r, bint partial) except -1
    cdef int read_in_place(self, ChannelReader r, int64_t now) except -1
    cdef int hints(self, SharedLook *looks) noexcept
    cdef bint enough(self) noexcept
    cdef Py_ssize_t waiting(self) noexcept
    cdef object give_out(self)
    cdef object take_event(self)
    cdef void forget(self)
