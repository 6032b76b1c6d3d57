"""An input gate: receives the buffers of all producers, and gives out record batches or records."""

import os
import threading
from collections.abc import Mapping

import numpy as np

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint32_t

from fastbuf._native.activity cimport *
from fastbuf._native.atomics cimport *
from fastbuf._native.sockets cimport EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd
from fastbuf.exchange.activity cimport activity_figures, activity_waited_s
from fastbuf.exchange.channel_reader cimport ChannelReader, local_channel, shared_channel, wire_channels
from fastbuf.exchange.clock cimport seconds_ns
from fastbuf.exchange.doorbell cimport Doorbell, spin_ended, spin_init
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.failure cimport (
    FAIL_ABORTED, FAIL_PEER_LOST, failure_code, failure_raise, failure_set, failure_text,
)
from fastbuf.exchange.gate_core cimport *
from fastbuf.exchange.gate_intake cimport GateIntake
from fastbuf.exchange.gate_producers cimport (
    all_have_ended, awaits_producers, refuse_producer, refuse_to_wait_for_oneself,
)
from fastbuf.exchange.gate_report cimport audit_gate, gate_counters, gate_gauges, stall_text
from fastbuf.exchange.input_channel cimport (
    CHANNEL_LOCAL, CHANNEL_SHARED, ChannelCounters, ChannelKind, InputChannel,
)
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport Subpartition
from fastbuf.exchange.shared_block cimport SHARED_ABORTED, SHARED_CANCELLED
from fastbuf.exchange.shared_reader cimport MOST_LOOKS, SharedLook, SharedReader, shared_came, shared_spin
from fastbuf.flow.credits cimport CreditRow
from fastbuf.flow.flow_control cimport Flow, flow_receiver_init
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool
from fastbuf.memory.pool_setup cimport fork_count
from fastbuf.memory.pool_waking cimport local_set_listener, local_set_signal
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.serializer cimport Serializer

from fastbuf.checks import MOST_SEGMENTS, one_of, timeout_or_none, whole
from fastbuf.config import FLOW_CONTROLS, ON_PEER_LOSS
from fastbuf.errors import (
    ConfigError, ExchangeClosed, ResourceError, SequenceError, StallTimeout, left_by, strerror,
)
from fastbuf.exchange import asynchronous
from fastbuf.exchange.address import GateAddress, check_producer
from fastbuf.exchange.events import Event

cdef enum:
    SLICE_NS = 200000000        # how often signals are checked while waiting
    FIRST_SLICE_NS = 50000000   # the same when something has just come: after it, does this thread wait for itself?
    LONG_SLICE_NS = 1000000000  # how often an event loop counts the time that producers have not connected
    OPEN_ROWS = 256             # rows of `credits` if the channels are not known; further channels have their own


#: A row of `credits`: the first counters of a CreditRow, which is one cache line.
CREDITS = np.dtype({
    "names": ["announced", "used", "available", "backlog", "exclusive", "floating"],
    "formats": [np.int64] * 6,
    "itemsize": sizeof(CreditRow),
})


cdef void _notify_gate(void *context) noexcept nogil:
    gate_notify(<GateCore *> context)


# no_gc_clear: the core uses the memory of credits and bell until the end of __dealloc__.
@cython.no_gc_clear
cdef class InputGate:
    """InputGate(environment, serializer, channels, gate_id, epoch, secret, config, maximum=None, lazy=False, \
on_error="raise", on_peer_loss="error")\n--\n
    Receives the buffers of all producers; made by :meth:`ShuffleEnvironment.create_input_gate`.

    Iterate over it, or call :meth:`poll`. It gives out :class:`pyarrow.RecordBatch` for a columnar serializer,
    :class:`LazyRows` if it is lazy, else records. There is no order between channels.

    A loop, also an ``async for``, that stops early leaves the rest to the next loop or poll. Several threads may read a
    gate: each item goes to one of them, in no order.

    Attributes
    ----------
    credits : numpy.ndarray
        The credits of its channels, in the order in which they connected: ``announced``, ``used``, ``available``,
        ``backlog``, ``exclusive`` and ``floating``, in buffers, int64 each. These are the counters themselves, not a
        copy, and read-only. Those of one moment are what :meth:`audit` checks.
    """

    def __cinit__(self, *arguments, **named):
        self.wake_fd = -1
        self.pending = []
        self.refused = ""
        spin_init(&self.spins, (os.cpu_count() or 1) == 1)
        self.forks = fork_count()

    def __init__(self, environment, Serializer serializer, channels, unsigned int gate_id, unsigned long long epoch,
                 bytes secret, config, maximum=None, bint lazy=False, on_error="raise", str on_peer_loss="error"):
        cdef NetworkBufferPool network = environment.pool
        cdef int64_t[:, ::1] counters
        if lazy and not isinstance(serializer, RowSerializer):
            raise ConfigError(f"lazy=True needs a RowSerializer, and the serializer is a {type(serializer).__name__}")
        if not callable(on_error):
            on_error = one_of("on_error", on_error, ("raise", "skip"))
        if on_error != "raise" and (lazy or serializer.kind == "columnar"):
            raise ConfigError(f"on_error is {on_error!r:.80}: this gate decodes no single records that it could leave "
                              f"out, since {'it is lazy' if lazy else 'its serializer is columnar'}")
        self.environment = environment
        self.serializer = serializer
        self.channels = channels
        self.gate_id = gate_id
        self.epoch = epoch
        self.secret = secret
        self.config = config
        self.stall_ns = -1 if config.stall_timeout_s is None else seconds_ns(config.stall_timeout_s)
        self.lock = threading.RLock()
        self.intake = GateIntake(serializer, config, lazy, None if on_error == "raise" else on_error)
        self.bell = Doorbell(environment.shared)
        # Every channel needs at least one segment; a gate with unknown channels needs one in all.
        required = channels if channels is not None else 1
        wanted = (channels if channels is not None else 1) * config.exclusive + config.floating
        if maximum is None and channels is not None:
            maximum = min(wanted, MOST_SEGMENTS)
        self.pool = environment.pool.create_local_pool(
            required=required, maximum=max(required, maximum) if maximum is not None else None, name=f"gate {gate_id}")
        exclusive = config.exclusive
        if channels is not None:
            # All channels get the same number of exclusive segments, fewer if needed but at least one.
            exclusive = max(1, min(exclusive, max(required, maximum) // channels))
        rows = np.zeros((channels if channels is not None else OPEN_ROWS, sizeof(CreditRow) // 8), np.int64)
        counters = rows
        self.credits = rows.view(CREDITS)[:, 0]
        self.credits.flags.writeable = False
        self.core = gate_new(network.core, self.pool.core, network.core.count, exclusive, config.floating,
                             <CreditRow *> &counters[0, 0], len(rows), self.bell.bell)
        if self.core == NULL:
            raise MemoryError
        self.intake.core = self.core
        self.intake.wire = wire_channels(self.core)
        flow_receiver_init(&self.core.flow, <Flow> <int> FLOW_CONTROLS.index(config.flow_control))
        self.core.on_loss = <OnLoss> <int> ON_PEER_LOSS.index(on_peer_loss)
        fb_activity_init(&self.doing, fb_now_ns())
        self.core.buffers.unopened = channels if channels is not None else 0
        local_set_listener(self.pool.core, self.core.event)

    def __dealloc__(self):
        # Usually close() was called; a gate that was never connected may also be dropped.
        if self.core != NULL:
            if not self.freed and self.pool is not None and self.pool.core != NULL:
                local_set_listener(self.pool.core, NULL)
                local_set_signal(self.pool.core, -1)
            gate_free(self.core)
        if self.wake_fd >= 0:       # not closed before, as an event loop may still watch it
            close(self.wake_fd)

    # ---- channels

    def check_producer(self, epoch, fingerprint):
        """Raises if a producer of this epoch and schema does not belong to this gate."""
        check_producer(self, epoch, fingerprint)

    cdef InputChannel *open_channel(self, uint32_t number, ChannelKind kind, int64_t flush_ns, str peer) except NULL:
        cdef uint32_t i, n = gate_channels(self.core)
        cdef InputChannel *c
        if self.channels is not None and n >= <uint32_t> self.channels:
            for i in range(n):
                if gate_channel(self.core, i).number == number:
                    break
            else:
                raise SequenceError(f"channel {number} is one too many: its gate has all its channels ({n})")
        if self.ended and self.core.on_loss != LOSS_ERROR:
            raise SequenceError(f"channel {number} comes too late: gate {self.gate_id} was read to its end")
        c = gate_open_channel(self.core, number, kind, flush_ns, self.core.on_loss != LOSS_ERROR and
                              self.channels is None and self.sealed is None)
        if c == NULL:
            refuse_producer(self.core, self, self.intake.peers, number, kind == CHANNEL_LOCAL, peer)
        self.intake.connected(c, peer)
        return c

    def add_local(self, ResultPartition partition, int index):
        """Read subpartition `index` of a partition of this process in place (a local channel)."""
        cdef Subpartition *s = &partition.subs[index]
        cdef InputChannel *c
        if fb_u32_load_acquire(&self.is_closed):
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        c = self.open_channel(partition.channel, CHANNEL_LOCAL, partition.flush_ns, "in this process")
        # Only now, so that a partition that was refused does not keep the gate alive.
        s.notify = _notify_gate
        s.notify_context = self.core
        self.intake.in_place.append(local_channel(c, partition, index))
        self.intake.locals += 1
        partition.set_transport(index, "local", f"gate {self.gate_id}")
        partition.notified.append(self)

    def add_shared(self, SharedReader reader not None, unsigned int number, int64_t flush_ns):
        """Read segments of another process in place (a memfd channel); called by the transport."""
        cdef InputChannel *c
        if fb_u32_load_acquire(&self.is_closed):
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        c = self.open_channel(number, CHANNEL_SHARED, flush_ns, reader.peer)
        self.intake.in_place.append(shared_channel(c, reader))
        gate_notify(self.core)

    def lose(self, SharedReader reader not None, str text):
        """The producer of a memfd channel was lost: its reader fails, or reads the rest.  The transport calls it."""
        cdef bytes reason = failure_text(text)
        if self.freed:
            return
        if self.core.on_loss == LOSS_ERROR:
            gate_fail(self.core, FAIL_PEER_LOST, reason, len(reason))
        else:
            reader.lost = reason
            gate_notify(self.core)

    def seal(self, totals):
        """Tell the gate all its channels, and how many buffers each sent; it is finished when it has read them.

        Parameters
        ----------
        totals : dict of int to int
            Buffers by channel number, as ``writer.totals(consumer)`` gives them of one.
        """
        if fb_u32_load_acquire(&self.is_closed):
            return
        if not isinstance(totals, Mapping):
            raise ConfigError(f"totals is {totals!r:.80}, of type {type(totals).__name__}: it must be a dict of "
                              "buffers by channel, as writer.totals(consumer) gives it")
        self.sealed = {whole("channel", channel, 0, (1 << 32) - 1): whole("buffers", buffers, 0, (1 << 64) - 1)
                       for channel, buffers in totals.items()}
        if not self.freed:      # another thread may have closed it while the totals were read
            gate_notify(self.core)

    def block(self, channel):
        """Stop reading a channel until :meth:`unblock`.

        Its producer gets no more credit. What it sends with the credit that it has is kept in order, then it waits; the
        other channels go on. Blocking a blocked channel does nothing.

        Directly after an event was given out, nothing sent after that event has been read yet. At other times, rows
        that were already read, and an event behind them, are still given out.

        Parameters
        ----------
        channel : int
            The number of the channel's producer, as in :attr:`Event.channel`.

        Raises
        ------
        ConfigError
            No such channel has connected.
        ExchangeClosed
            The gate is closed.
        """
        self._set_blocked(channel, True)

    def unblock(self, channel):
        """Go on reading a channel where :meth:`block` stopped. May be called from any thread."""
        self._set_blocked(channel, False)

    def _set_blocked(self, channel, bint blocked):
        # Not with the gate's lock, which a reader holds while it waits.  The GIL is enough: it is not released here.
        self.check_process()
        if self.freed or fb_u32_load_acquire(&self.is_closed):
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        channel = whole("channel", channel, 0, (1 << 32) - 1)
        if not gate_block(self.core, channel, blocked):
            raise ConfigError(
                f"gate {self.gate_id} has no channel {channel}: {gate_channels(self.core)} have connected")

    # ---- reading

    def poll(self, timeout=None):
        """Wait for data and return it.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; ``None``: until something comes or the gate ends.

        Returns
        -------
        pyarrow.RecordBatch or list or LazyRows or Event or None
            Up to about ``batch_rows`` rows or ``batch_bytes``; a smaller batch when its first row has waited for the
            ``buffer_timeout_s`` of its writer. An :class:`Event` comes by itself, after all records that its producer
            wrote before it. ``None``: nothing came in time, or everything was read (then :attr:`finished` is true).

        Raises
        ------
        StallTimeout
            Some producers have not connected, and nothing came while callers waited for ``stall_timeout_s`` in all; or
            this is the only thread, so that nobody can ever write or unblock a channel: that is said at once.
        RuntimeError
            Called from code of a record that this thread is decoding from this gate; nothing was done.
        """
        timeout = timeout_or_none(timeout)
        cdef int64_t ran
        if not self.ended:
            self.check_process()    # before the lock, which the fork may have copied while a reader held it
        try:
            with self.lock:
                ran = fb_activity_ran(&self.doing, fb_now_ns())
                try:
                    return self.read(timeout)
                finally:
                    fb_activity_coded(&self.doing, ran, fb_now_ns())
        finally:
            if self.untold:
                self._abort_in_place()

    cdef int stall(self, bint forever) except -1:
        """Raises if data should have come; forever: the caller waits without a timeout."""
        self.quiet_ns = 0
        if self.awaits_channels():
            raise StallTimeout(self.describe_stall())
        if forever:
            refuse_to_wait_for_oneself(self.core, self, self.sealed, self.intake.lost, True)
        return 0

    def waited(self, double seconds):
        """Adds a wait of an event loop to the stall timeout."""
        self.quiet_ns += min(seconds_ns(seconds), 2 * <int64_t> LONG_SLICE_NS)

    cdef object read(self, timeout):
        cdef int64_t now = fb_now_ns()
        cdef int64_t deadline = -1 if timeout is None else now + seconds_ns(timeout)
        cdef GateIntake intake = self.intake
        cdef int64_t until, slept, looked
        cdef uint32_t key
        cdef bint in_place
        cdef SharedLook looks[MOST_LOOKS]
        cdef Driver *driver
        cdef int came, channels
        self.read_by = <unsigned long> PyThread_get_thread_ident()
        if fb_activity_state(&self.doing) != FB_RUNS:
            fb_activity_enter(&self.doing, FB_RUNS, 0, now)
        if self.ended and not self.has_pending():
            return None
        if self.intake.within:
            self.check_outside()
        while True:
            if fb_u32_load_acquire(&self.is_closed):
                raise ExchangeClosed(f"gate {self.gate_id} is closed")
            if failure_code(&self.core.failure):
                return self.read_last()
            if self.has_pending():
                return self.take_pending()
            # The order of an eventcount: read the epoch, check for data, announce the sleep, sleep.
            key = fb_event_epoch(self.core.event)
            now = fb_now_ns()
            came = intake.drain(now)
            if intake.event is not None and not intake.waiting():
                return intake.take_event()
            if intake.enough():
                return intake.give_out()
            if all_have_ended(self.core, self, self.sealed, intake.lost):
                got = intake.give_out() if intake.waiting() else None
                self.ended = True       # not before: a gate that fails has not ended
                gate_notify(self.core)  # a coroutine may wait while this thread reads
                return got
            now = fb_now_ns()
            if came:
                self.quiet_ns = 0
            if intake.waiting() and now >= self.give_out_ns():
                return intake.give_out()
            if 0 <= self.stall_ns < self.quiet_ns:
                self.stall(deadline < 0)
            elif deadline < 0 and self.quiet_ns >= FIRST_SLICE_NS and not intake.will_give():
                refuse_to_wait_for_oneself(self.core, self, self.sealed, self.intake.lost, False)
            gate_serve(self.core)
            if 0 <= deadline <= now:
                return None
            until = now + (SLICE_NS if self.quiet_ns else FIRST_SLICE_NS)
            if intake.waiting():
                until = min(until, self.give_out_ns())
            if intake.flush_due_ns >= 0:
                until = min(until, intake.flush_due_ns)
            if deadline >= 0:
                until = min(until, deadline)
            driver = self.core.driver
            if driver != NULL:
                driver.enter(driver)
            in_place = len(intake.in_place) > 0
            fb_activity_enter(&self.doing, FB_WAIT_INPUT, 0, now)
            channels = intake.hints(looks)      # valid until the next drain, as the gate's lock is held
            with nogil:
                self.sleep(key, until, looks, channels, driver, not in_place)
            looked = fb_now_ns()
            fb_activity_enter(&self.doing, FB_RUNS, 0, looked)
            slept = looked - now
            self.quiet_ns += min(slept, 2 * <int64_t> SLICE_NS)     # a longer sleep: this process was stopped itself
            PyErr_CheckSignals()

    cdef object read_last(self):
        """After a failure: first what was decoded before it, then the error."""
        if not self.aborted:
            if self.has_pending():
                return self.take_pending()
            if self.intake.waiting():
                return self.intake.give_out()
            if self.intake.event is not None:
                return self.intake.take_event()
        self.intake.raise_error()
        failure_raise(&self.core.failure)

    cdef int64_t give_out_ns(self) noexcept:
        # A columnar batch may wait for more rows until the producers' buffer timeout; records are given out at once.
        return self.intake.first_row_ns + (self.intake.linger_ns if self.intake.assembler is not None else 0)

    cdef bint spin(self, uint32_t key, int64_t until, SharedLook *looks, int channels) noexcept nogil:
        """Spins about as long as a sleep would cost; True: something came."""
        cdef int64_t limit = min(self.spins.ns, until - fb_now_ns())
        cdef bint came
        if channels == 0 or self.spins.most == 0:
            return False
        if channels <= MOST_LOOKS:
            came = shared_spin(looks, channels, self.core.event, key, limit)
        else:
            came = fb_event_spin(self.core.event, key, limit) != 0
        spin_ended(&self.spins, not came)
        return came

    cdef void sleep(self, uint32_t key, int64_t until, SharedLook *looks, int channels, Driver *driver,
                    bint alone) noexcept nogil:
        """Sleeps until the event's epoch differs from `key`, or until the time `until`.

        looks: places to poll for the memfd channels, of which there are `channels`; at most MOST_LOOKS are given.
        alone: all data comes by the driver.
        """
        cdef fb_event *e = self.core.event
        if driver != NULL:
            # Driving would only delay data that comes through shared memory.
            if alone and driver.drive(driver, &self.drive, e, key, until):
                driver.leave(driver, False)
                return
            driver.sleeps(driver)
        # A peer in another process may be about to write: spin before the system call, as long as that pays.
        if self.spin(key, until, looks, channels):
            if driver != NULL:
                driver.leave(driver, True)
            return
        if fb_event_prepare(e) == key and not fb_u32_load_acquire(&self.is_closed) and \
                not failure_code(&self.core.failure) and \
                not shared_came(looks, min(channels, <int> MOST_LOOKS)):     # a burst of buffers rings only once
            fb_event_wait(e, key, until)
        if driver != NULL:
            driver.leave(driver, True)

    def __iter__(self):
        return self

    def __next__(self):
        if self.intake.assembler is not None or self.intake.elements is not None:
            got = self.poll()
            if got is None:
                raise StopIteration
            return got
        while True:
            if self.has_pending():
                return self.next_pending()
            got = self.poll()
            if got is None:
                raise StopIteration
            if isinstance(got, Event):
                return got
            self.keep(got)

    # What is pending is guarded by the GIL: nothing below runs other code between a look at it and a change of it.

    @cython.final
    cdef inline bint has_pending(self) noexcept:
        return self.pending_at < len(self.pending)

    @cython.final
    cdef inline object next_pending(self):
        record = self.pending[self.pending_at]
        self.pending[self.pending_at] = None        # keep no reference to a record that was given out
        self.pending_at += 1
        return record

    cdef list take_pending(self):
        cdef list fresh = []
        cdef list records = self.pending
        cdef Py_ssize_t at = self.pending_at
        self.pending, self.pending_at = fresh, 0
        del records[:at]
        return records

    def keep(self, list records not None):
        """Give out these records one by one, after those that other readers kept."""
        if self.has_pending():
            self.pending.extend(records)
        else:
            self.pending, self.pending_at = records, 0
        if not self.freed:
            gate_notify(self.core)      # another reader may wait

    def pending_or(self, default):
        """The next record that a reader kept; `default`: there is none."""
        return self.next_pending() if self.has_pending() else default

    # ---- in an event loop

    def arm_wake(self):
        """Arm the eventfd, which becomes readable when something comes; returns it, and whether it was readable."""
        self.check_process()    # before the lock, as in poll
        with self.lock:
            if fb_u32_load_acquire(&self.is_closed):
                raise ExchangeClosed(f"gate {self.gate_id} is closed")
            descriptor = self.wake_descriptor()
            cleared = gate_arm(self.core)
            fb_activity_enter(&self.doing, FB_WAIT_INPUT, 0, fb_now_ns())    # until the next poll
            return descriptor, cleared

    def due_in(self):
        """Seconds until something is due that the descriptor does not report, a timeout; inf: nothing is."""
        cdef int64_t now = fb_now_ns()
        cdef int64_t due = self.intake.flush_due_ns
        if self.intake.waiting() and (due < 0 or self.give_out_ns() < due):
            due = self.give_out_ns()
        if self.stall_ns >= 0 and self.awaits_channels():
            stall = now + min(max(self.stall_ns - self.quiet_ns, <int64_t> 0) + 1000000, <int64_t> LONG_SLICE_NS)
            due = stall if due < 0 else min(due, stall)
        return float("inf") if due < 0 else max(due - now, <int64_t> 0) / 1e9

    def is_due(self):
        """Whether a poll may give something now; a look at channels read in place that takes nothing."""
        if not self.lock.acquire(blocking=False):       # another thread reads
            return True
        try:
            return self.freed or self.intake.waiting() > 0 or self.awaits_channels() or \
                self.intake.look(fb_now_ns()) != 0
        finally:
            self.lock.release()

    cdef bint awaits_channels(self) except -1:
        return not self.freed and awaits_producers(self.core, self.channels, self.sealed, self.intake.lost)

    def wake_descriptor(self):
        """The eventfd of this gate; the first call makes it."""
        # Not with the gate's lock, which a reader holds while it waits.  The GIL is enough: it is not released here.
        if self.freed:
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        if self.wake_fd < 0:
            self.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
            if self.wake_fd < 0:
                raise ResourceError(f"no eventfd for gate {self.gate_id}: {strerror(errno)}")
            fb_u32_store_release(&self.core.wake_fd, <uint32_t> self.wake_fd)
            local_set_signal(self.pool.core, self.wake_fd)      # a segment became free
        return self.wake_fd

    def poll_async(self, timeout=None):
        """``await gate.poll_async()``: like :meth:`poll`; other coroutines run meanwhile."""
        return asynchronous.poll_async(self, timeout)

    def __aiter__(self):
        return asynchronous.AsyncReader(self)

    # ---- ending

    def abort(self, reason="the consumer gave up"):
        """Give up at once, from any thread: the reader and all producers fail with `reason`.

        The gate must still be closed. To cancel the producers without an error, only close it.
        """
        cdef bytes text = failure_text(reason)
        if fb_u32_load_acquire(&self.is_closed) or self.forked():
            return
        self.aborted = True
        self.untold = True          # set before the failure: a reader that stops then tells producers read in place
        gate_fail(self.core, FAIL_ABORTED, text, len(text))
        gate_abort(self.core)
        self._abort_in_place()

    def _abort_in_place(self):
        # Producers may take back their segments from here on, so nobody may be reading them.  If another thread has the
        # lock, it does this after its poll; code of a record leaves it to the call that decodes the record.
        if self.lock.acquire(blocking=False):
            try:
                if not self.freed and self.intake.within != <unsigned long> PyThread_get_thread_ident():
                    self.untold = False
                    self._end_in_place()
            finally:
                self.lock.release()

    def close(self):
        """Close the gate, from any thread; a second call does nothing.

        If the gate is not finished, its producers are cancelled (:attr:`RecordWriter.cancelled`): they drop what they
        write for it from then on, and see no error. If the gate has failed or was aborted, they fail with the reason.
        ``with gate:`` closes it too, and aborts it if an exception leaves the block; not if that is GeneratorExit, with
        which a generator ends that nobody reads on.

        Raises
        ------
        RuntimeError
            Called from code of a record that this thread is decoding from this gate, or from a signal handler
            meanwhile; nothing was done.
        """
        self.end(None)

    def end(self, reason):
        """Like :meth:`close`; if the gate is not finished, producers fail with `reason` unless it is None."""
        cdef bytes text
        if self.freed or self.forked():
            return
        self.check_outside()
        fb_u32_store_release(&self.is_closed, 1)
        if reason is not None and not self.ended:
            text = failure_text(reason)
            failure_set(&self.core.failure, FAIL_ABORTED, text, len(text))
        gate_notify(self.core)       # a reader that waits in another thread raises ExchangeClosed
        with self.lock:
            if not self.freed:
                self._cancel()
                self.environment.release_gate(self)

    def _cancel(self):
        # Cancels every open channel and recycles queued segments.
        gate_cancel(self.core)
        self._end_in_place()

    def _end_in_place(self):
        # Cancels producers that are read in place; if the gate has failed, they fail too.
        cdef ChannelReader r
        for r in self.intake.in_place:
            if failure_code(&self.core.failure):
                r.end(SHARED_ABORTED, self.core.failure.text)
            else:
                r.end(SHARED_CANCELLED, b"")

    def free(self):
        """Last step of :meth:`close`, called by the environment; no transport points here any more."""
        if self.freed:
            return
        self.final_stats = self.stats()
        self.freed = True
        local_set_listener(self.pool.core, NULL)
        local_set_signal(self.pool.core, -1)
        if self.intake.locals == 0:
            gate_free(self.core)
            self.core = NULL
        # Else local writers may still notify this core; each has a reference to the gate, and __dealloc__ frees it.
        self.intake.forget()
        self.bell.keep_to_ourselves()
        self.pending = []
        self.pool.destroy()

    def __reduce__(self):
        raise TypeError("an InputGate belongs to its process and cannot be copied: give gate.address to the producers")

    def __enter__(self):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, value, traceback):
        self.__exit__(kind, value, traceback)

    def __exit__(self, kind, value, traceback):
        if kind not in (None, GeneratorExit) and not fb_u32_load_acquire(&self.is_closed):
            self.abort(left_by("the consumer", kind, value))
        self.close()

    # ---- figures

    @property
    def address(self):
        """The :class:`GateAddress` that a producer in another process takes as its target; it contains the secret.

        Raises
        ------
        ConfigError
            The environment does not listen yet.
        """
        if self.environment.address is None:
            raise ConfigError(
                f"gate {self.gate_id} has no address: its environment does not listen; call env.listen() first")
        return GateAddress(*self.environment.address, self.gate_id, self.secret)

    def __repr__(self):
        # The caller may not have the gate's lock, so the figures may be of different moments.
        if self.core == NULL and not self.freed:
            return "<InputGate: not made>"
        state = "closed" if self.freed or fb_u32_load_acquire(&self.is_closed) else \
            "failed" if failure_code(&self.core.failure) else "finished" if self.finished else "open"
        stats = self.stats()
        in_use = 0 if self.freed else self.pool.in_use
        expected = "any number of" if self.channels is None else self.channels
        return (f"<InputGate {self.gate_id}: {state}, {stats['channels']} of {expected} channels, {stats['records']} "
                f"records, {in_use} of {stats['segments']} segments in use>")

    def describe_stall(self):
        """The state of a waiting gate, as text."""
        if self.freed:          # the caller may not have the gate's lock
            return f"gate {self.gate_id} is closed"
        return stall_text(self, self.core)

    @property
    def finished(self):
        """Whether everything was read and given out."""
        return self.ended and not self.has_pending()

    @property
    def closed(self):
        """Whether `close` was called."""
        return fb_u32_load_acquire(&self.is_closed) != 0

    @property
    def records_in(self):
        """Records, or rows, given out so far."""
        return self.intake.records_in

    @property
    def lost(self):
        """Why producers were lost, by channel number, in whose place no other has come; see ``on_peer_loss``."""
        return dict(self.intake.lost)

    def stats(self):
        """Figures so far: records, skipped (left out, see `on_error`), bytes, buffers, channels, peak_segments,
        segments (the cap), wait_s, producers_lost, records_cut: how many records of lost producers (of columns:
        chunks of rows) came in part, and records_missed: how many (of columns: rows) its producers dropped before what
        it has read, as it was slow (``on_slow_consumer="drop_oldest"``).
        """
        cdef ChannelCounters counted
        if self.freed:
            return dict(self.final_stats)
        counted = gate_counters(self.core)
        channels = gate_channels(self.core)     # before pool.stats(), in which another thread may close the gate
        stats = self.pool.stats()
        return {
            "records": self.intake.records_in,
            **counted,
            "channels": channels,
            "peak_segments": stats.peak,
            "segments": stats.maximum,
            "wait_s": activity_waited_s(&self.doing),
            "producers_lost": self.intake.losses,
            "records_cut": self.intake.cut,
        }

    def activity(self):
        """What its reader is doing, as in :meth:`RecordWriter.activity`; ``"input"``: it waits for producers."""
        return activity_figures(&self.doing)

    def gauges(self):
        """Current use of its segments and queues, with Flink's names.

        Returns
        -------
        dict
            ``exclusiveBuffersUsage``, ``floatingBuffersUsage`` and, for both together, ``inPoolUsage``: the share of
            its segments, 0 to 1, that hold data which is not read yet (announced credit that is not used does not
            count; channels read in place have no segments). ``inputQueueLength``: buffers that wait for the reader or
            are being read.
        """
        if self.freed:
            return {"exclusiveBuffersUsage": 0.0, "floatingBuffersUsage": 0.0, "inPoolUsage": 0.0,
                    "inputQueueLength": 0}
        cdef ChannelReader r
        figures = gate_gauges(self.core)
        for r in self.intake.in_place:
            figures["inputQueueLength"] += r.queued()
        return figures

    def audit(self):
        """Check the credit invariants of every channel at one moment; the error names the channel that breaks them."""
        if not self.freed:
            audit_gate(self.core)
        return True

    def forked(self):
        """Whether this process is a forked child, which must not use its parent's exchange."""
        return fork_count() != self.forks

    cdef int check_outside(self) except -1:
        # The lock is reentrant, so it does not keep out this thread.
        if self.intake.within == <unsigned long> PyThread_get_thread_ident():
            raise RuntimeError(f"gate {self.gate_id} is decoding a record in this thread: use it afterwards")
        return 0

    cdef int check_process(self) except -1:
        if fork_count() != self.forks:
            raise ExchangeClosed(
                f"gate {self.gate_id} belongs to the parent process: make a new one after the fork")
        return 0
