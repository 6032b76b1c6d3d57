# Map of an input gate: gives out what all producers sent, as record batches or records.
#
# One thread polls at a time (guarded by `lock`); any thread may abort or close.
from libc.stdint cimport int64_t, uint32_t

from fastbuf._native.activity cimport fb_activity
from fastbuf._native.atomics cimport fb_au32
from fastbuf.exchange.doorbell cimport Doorbell, Spin
from fastbuf.exchange.driver cimport Driver, DriveState
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.gate_intake cimport GateIntake
from fastbuf.exchange.input_channel cimport ChannelKind, InputChannel
from fastbuf.exchange.shared_reader cimport SharedLook
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.serializers.serializer cimport Serializer

cdef class InputGate:
    cdef GateCore *core
    cdef readonly Serializer serializer
    cdef readonly LocalBufferPool pool
    cdef readonly object credits            # the CreditRows of its channels, in the order in which they connected
    cdef readonly object environment
    cdef readonly object config
    cdef readonly object channels           # number expected, or None: open until sealed
    cdef readonly unsigned int gate_id
    cdef readonly unsigned long long epoch
    cdef readonly bytes secret
    cdef bint ended                         # all channels were read to their ends
    cdef fb_au32 is_closed                  # 1: `close` was called; read without the GIL too
    cdef readonly bint freed
    cdef bint aborted                       # `abort` was called: what was decoded is not given out any more
    cdef bint untold                        # aborted; producers read in place must still be told.  Guarded by the GIL
    cdef object final_stats
    cdef public str refused                 # which producer was refused last, and why; "": none.  Guarded by the GIL
    cdef object __weakref__
    cdef uint32_t forks                     # fork_count() when it was made
    cdef int wake_fd                        # eventfd for event loops, -1: not made yet
    cdef readonly Doorbell bell             # contains `core.bell`
    cdef DriveState drive                   # statistics of driving the transport
    cdef Spin spins
    cdef object lock
    cdef dict sealed                        # {channel: buffers}
    cdef GateIntake intake                  # what was decoded and not given out
    cdef int64_t stall_ns                   # the configuration's stall timeout, negative: none
    cdef int64_t quiet_ns                   # time that all calls waited since data last came
    cdef fb_activity doing                  # what its reader does
    cdef readonly unsigned long read_by     # thread that read last, 0: none has.  Guarded by the GIL
    cdef list pending                       # records to be given out one by one, from pending_at on
    cdef Py_ssize_t pending_at

    cdef bint spin(self, uint32_t key, int64_t until, SharedLook *looks, int channels) noexcept nogil
    cdef void sleep(self, uint32_t key, int64_t until, SharedLook *looks, int channels, Driver *driver,
                    bint alone) noexcept nogil
    cdef int64_t give_out_ns(self) noexcept
    # A new channel, of any transport; SequenceError: its number is in use, or the gate has all its channels.
    cdef InputChannel *open_channel(self, uint32_t number, ChannelKind kind, int64_t flush_ns, str peer) except NULL
    cdef bint awaits_channels(self) except -1   # producers are expected that have not connected
    cdef int stall(self, bint forever) except -1
    cdef object read(self, timeout)
    cdef object read_last(self)
    cdef bint has_pending(self) noexcept
    cdef object next_pending(self)
    cdef list take_pending(self)
    cdef int check_outside(self) except -1
    cdef int check_process(self) except -1
