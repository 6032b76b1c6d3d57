# Map of an input gate: what R producers sent, as record batches or records.
#
# One thread reads at a time (`lock` sees to it); any thread may abort or close.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from fastbuf._native.activity cimport fb_activity
from fastbuf._native.atomics cimport fb_au32
from fastbuf.exchange.doorbell cimport Doorbell
from fastbuf.exchange.driver cimport Driver, DriveState
from fastbuf.exchange.gate_core cimport GateCore
from fastbuf.exchange.gate_intake cimport GateIntake
from fastbuf.exchange.shared_reader cimport SharedLook
from fastbuf.flow.credit_ledger cimport CreditLedger
from fastbuf.memory.local_buffer_pool cimport LocalBufferPool
from fastbuf.serializers.serializer cimport Serializer

cdef class InputGate:
    cdef GateCore *core
    cdef readonly Serializer serializer
    cdef readonly LocalBufferPool pool
    cdef readonly CreditLedger ledger       # its channels' credit, in the order in which they came
    cdef readonly object environment
    cdef readonly object config
    cdef readonly object channels           # number expected, or None: open until sealed
    cdef readonly unsigned int gate_id
    cdef readonly unsigned long long epoch
    cdef readonly bytes secret
    cdef readonly bint finished
    cdef fb_au32 is_closed                  # 1: `close` was called; read without the GIL too
    cdef readonly bint freed
    cdef bint untold                        # aborted, and producers read in place have not heard of it.  The GIL
    cdef object final_stats
    cdef object __weakref__
    cdef uint32_t forks                     # fork_count() when it was made
    cdef int wake_fd                        # eventfd for event loops, -1: not asked for yet
    cdef PyObject *bell_kept    # a reference of its own to `bell`: the collector may clear that one before the end
    cdef readonly Doorbell bell             # `core.bell` is its
    cdef DriveState drive                   # how fetching it oneself has paid
    cdef int64_t spin_most                  # the longest it looks; 0: there is one core
    cdef int64_t spin_ns                    # how long to look before sleeping, where peers share memory
    cdef object lock
    cdef object sealed                      # {channel: buffers}
    cdef GateIntake intake                  # what has been taken in and not given out
    cdef int64_t stall_ns                   # the configuration's stall timeout, negative: none
    cdef int64_t quiet_ns                   # how long it was waited on since something came, by all calls
    cdef fb_activity doing                  # what its reader does
    cdef readonly unsigned long read_by     # thread that read last, 0: none has.  The GIL
    cdef list pending                       # records to be given out one by one: those from pending_at on
    cdef Py_ssize_t pending_at

    cdef bint spin(self, uint32_t key, int64_t until, SharedLook *looks, int channels) noexcept nogil
    cdef void sleep(self, uint32_t key, int64_t until, SharedLook *looks, int channels, Driver *driver,
                    bint alone) noexcept nogil
    cdef int64_t give_out_ns(self) noexcept
    cdef bint complete(self) except -1
    cdef int stall(self, bint forever) except -1
    cdef object read(self, timeout)
    cdef int check_outside(self) except -1
    cdef int check_process(self) except -1
