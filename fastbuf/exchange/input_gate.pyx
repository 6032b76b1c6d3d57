"""An input gate: where the buffers of all producers arrive, and record batches or records are given out."""

import os
import sys
import threading

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastbuf._native.activity cimport (
    FB_RUNS,
    FB_WAIT_INPUT,
    fb_activity_coded,
    fb_activity_enter,
    fb_activity_init,
    fb_activity_ran,
    fb_activity_state,
)
from fastbuf._native.atomics cimport (
    fb_event,
    fb_event_epoch,
    fb_event_prepare,
    fb_event_spin,
    fb_event_wait,
    fb_now_ns,
    fb_u32_load_acquire,
    fb_u32_store_release,
)
from fastbuf._native.sockets cimport EFD_CLOEXEC, EFD_NONBLOCK, close, eventfd
from fastbuf.exchange.activity cimport activity_figures, activity_waited_s
from fastbuf.exchange.channel_reader cimport ChannelReader, local_channel, shared_channel, wire_channels
from fastbuf.exchange.clock cimport seconds_ns
from fastbuf.exchange.doorbell cimport Doorbell
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.failure cimport FAIL_ABORTED, FAIL_PEER_LOST, failure_code, failure_raise, failure_set
from fastbuf.exchange.gate_core cimport (
    GateCore,
    gate_abort,
    gate_all_wait,
    gate_arm,
    gate_block,
    gate_cancel,
    gate_channel,
    gate_channels,
    gate_fail,
    gate_figures,
    gate_free,
    gate_new,
    gate_notify,
    gate_open_channel,
    gate_serve,
    gate_unfinished,
)
from fastbuf.exchange.gate_intake cimport GateIntake
from fastbuf.exchange.gate_report cimport audit_gate, gate_gauges, stalled_channels
from fastbuf.exchange.input_channel cimport CHANNEL_LOCAL, CHANNEL_SHARED, InputChannel
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport Subpartition
from fastbuf.exchange.shared_block cimport SHARED_ABORTED, SHARED_CANCELLED
from fastbuf.exchange.shared_reader cimport MOST_LOOKS, SharedLook, SharedReader, shared_came, shared_spin
from fastbuf.flow.credit_ledger cimport ledger_of_gate
from fastbuf.flow.flow_control cimport Flow, flow_receiver_init
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool
from fastbuf.memory.pool_core cimport local_set_listener
from fastbuf.memory.pool_setup cimport fork_count
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.serializer cimport Serializer

from fastbuf.checks import MOST_SEGMENTS
from fastbuf.config import FLOW_CONTROLS
from fastbuf.errors import ConfigError, ExchangeClosed, ResourceError, SequenceError, StallTimeout
from fastbuf.exchange import asynchronous
from fastbuf.exchange.address import GateAddress
from fastbuf.exchange.events import Event

cdef enum:
    SLICE_NS = 200000000        # signals are looked at this often while waiting
    SPIN_NS = 20000             # about what a sleep and a wake-up cost
    LEAST_SPIN_NS = 2000        # what is left of it for a reader that spun in vain
    OPEN_ROWS = 256             # of the ledger, when channels are not known; what comes beyond has rows of its own


cdef void _notify_gate(void *context) noexcept nogil:
    gate_notify(<GateCore *> context)


# no_gc_clear: the core's rows are the ledger's memory, to the last line of __dealloc__.
@cython.no_gc_clear
cdef class InputGate:
    """InputGate(environment, serializer, channels, gate_id, epoch, secret, config, maximum=None, lazy=False)\n--\n
    Where the buffers of all producers arrive; made by :meth:`ShuffleEnvironment.create_input_gate`.

    Iterate over it, or call :meth:`poll`. Gives out :class:`pyarrow.RecordBatch` for a columnar
    serializer, :class:`LazyRows` if it is lazy, records otherwise. Nothing is ordered across channels.
    """

    def __cinit__(self, *arguments, **named):
        self.wake_fd = -1
        self.pending = []
        self.spin_ns = self.spin_most = SPIN_NS if (os.cpu_count() or 1) > 1 else 0
        self.forks = fork_count()

    def __init__(self, environment, Serializer serializer, channels, unsigned int gate_id, unsigned long long epoch,
                 bytes secret, config, maximum=None, bint lazy=False):
        cdef NetworkBufferPool network = environment.pool
        if lazy and not isinstance(serializer, RowSerializer):
            raise ConfigError(f"a lazy gate is of a RowSerializer, not of a {type(serializer).__name__}")
        self.environment = environment
        self.serializer = serializer
        self.channels = channels
        self.gate_id = gate_id
        self.epoch = epoch
        self.secret = secret
        self.config = config
        self.stall_ns = -1 if config.stall_timeout_s is None else seconds_ns(config.stall_timeout_s)
        self.lock = threading.RLock()
        self.intake = GateIntake(serializer, config, lazy)
        self.bell = Doorbell(environment.shared)
        self.bell_kept = <PyObject *> self.bell
        Py_INCREF(self.bell)
        # Every channel has one segment at the least; an open gate must be able to serve one.
        required = channels if channels is not None else 1
        wanted = (channels if channels is not None else 1) * config.exclusive + config.floating
        if maximum is None and channels is not None:
            maximum = min(wanted, MOST_SEGMENTS)
        self.pool = environment.pool.create_local_pool(
            required=required, maximum=max(required, maximum) if maximum is not None else None, name=f"gate {gate_id}")
        exclusive = config.exclusive
        if channels is not None:
            # All channels get their exclusive segments, or fewer each, never some of them none.
            exclusive = max(1, min(exclusive, max(required, maximum) // channels))
        self.ledger = ledger_of_gate(channels if channels is not None else OPEN_ROWS, exclusive, config.floating)
        self.core = gate_new(network.core, self.pool.core, network.core.count, exclusive, config.floating,
                             self.ledger.rows, self.ledger.channels, self.bell.bell)
        if self.core == NULL:
            raise MemoryError
        self.intake.core = self.core
        self.intake.wire = wire_channels(self.core)
        flow_receiver_init(&self.core.flow, <Flow> <int> FLOW_CONTROLS.index(config.flow_control))
        fb_activity_init(&self.doing, fb_now_ns())
        self.core.buffers.unopened = channels if channels is not None else 0
        local_set_listener(self.pool.core, self.core.event)

    def __dealloc__(self):
        # The normal way is close(); a gate that was never connected may just be forgotten.
        if self.core != NULL:
            if not self.freed and self.pool is not None and self.pool.core != NULL:
                local_set_listener(self.pool.core, NULL)
            gate_free(self.core)
        Py_XDECREF(self.bell_kept)
        if self.wake_fd >= 0:       # not before: an event loop may still watch it
            close(self.wake_fd)

    # ---- channels

    def add_local(self, ResultPartition partition, int index):
        """Read subpartition `index` of a partition of this process in place (a local channel)."""
        cdef Subpartition *s = &partition.subs[index]
        cdef InputChannel *c
        if fb_u32_load_acquire(&self.is_closed):
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        c = gate_open_channel(self.core, partition.channel, CHANNEL_LOCAL, partition.flush_ns)
        if c == NULL:
            raise SequenceError(
                f"gate {self.gate_id}: channel {partition.channel} is there already, or the gate is closed")
        # Not before: a partition that was refused does not keep the gate alive.
        s.notify = _notify_gate
        s.notify_context = self.core
        self.intake.in_place.append(local_channel(c, partition, index))
        self.intake.locals += 1
        partition.set_transport(index, "local", f"gate {self.gate_id}")
        partition.notified.append(self)

    def add_shared(self, SharedReader reader not None, unsigned int number, int64_t flush_ns):
        """Read what another process lends (a memfd channel); called by the transport."""
        cdef InputChannel *c
        if fb_u32_load_acquire(&self.is_closed):
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        c = gate_open_channel(self.core, number, CHANNEL_SHARED, flush_ns)
        if c == NULL:
            raise SequenceError(f"channel {number} is connected already")
        self.intake.in_place.append(shared_channel(c, reader))
        gate_notify(self.core)

    def lose(self, str text):
        """A producer was lost: whoever reads fails with `text`; called by the transport."""
        cdef bytes told = text.encode("utf-8", "replace")
        if not self.freed:
            gate_fail(self.core, FAIL_PEER_LOST, told, len(told))

    def seal(self, totals):
        """Say which channels there are in all, and how many buffers each sent: the gate ends when all of it is read.

        Parameters
        ----------
        totals : dict of int to int
            Buffers by channel number.
        """
        if fb_u32_load_acquire(&self.is_closed):
            return
        self.sealed = {int(channel): int(buffers) for channel, buffers in totals.items()}
        if not self.freed:      # by another thread, as the numbers were read
            gate_notify(self.core)

    def block(self, unsigned int channel):
        """Let a channel wait: nothing of it is given out until :meth:`unblock`, in whichever order it comes.

        What its producer sends meanwhile is kept in order: as much as it has been given credit for, and no more is
        given. So the producer waits in the end; the other channels go on. To block it again does nothing.

        When an event has just been given out, nothing that came behind it has been taken in. At another time, what
        was taken in before is still given out: rows that wait to be a batch, and an event that came behind them.

        Parameters
        ----------
        channel : int
            The number of the channel's producer, as in :attr:`Event.channel`.

        Raises
        ------
        ConfigError
            No such channel has come.
        ExchangeClosed
            The gate is closed.
        """
        self._set_blocked(channel, True)

    def unblock(self, unsigned int channel):
        """Give out again what comes of a channel, from where :meth:`block` left it. May be called from any thread."""
        self._set_blocked(channel, False)

    def _set_blocked(self, unsigned int channel, bint blocked):
        # Without the gate's lock, which a reader holds while it waits: nothing here lets go of the GIL.
        self.check_process()
        if self.freed or fb_u32_load_acquire(&self.is_closed):
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        if not gate_block(self.core, channel, blocked):
            raise ConfigError(
                f"gate {self.gate_id} has no channel {channel}: {gate_channels(self.core)} have connected")

    # ---- reading

    cdef bint complete(self) except -1:
        """Whether every channel has been read to its end of partition, and had what its producer said."""
        cdef uint32_t i, n, expected
        cdef bint unfinished = gate_unfinished(self.core, &n)
        cdef InputChannel *c
        if self.channels is None and self.sealed is None:
            return False
        expected = <uint32_t> (len(self.sealed) if self.sealed is not None else self.channels)
        if (unfinished or n < expected) and n <= expected:
            return False
        # All that came have ended, so nobody but us looks at them now; or there are more than were announced.
        for i in range(n if self.sealed is not None else 0):
            c = gate_channel(self.core, i)
            if c.number not in self.sealed:
                raise SequenceError(f"gate {self.gate_id}: channel {c.number} is not among those that were announced")
            if not unfinished and self.sealed[c.number] != c.announced_total:
                raise SequenceError(
                    f"gate {self.gate_id}: channel {c.number} sent {c.announced_total} buffers, "
                    f"{self.sealed[c.number]} were announced")
        return not unfinished

    def poll(self, timeout=None):
        """What has arrived.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; ``None``: until something comes or the gate ends.

        Returns
        -------
        pyarrow.RecordBatch or list or LazyRows or Event or None
            Up to about ``batch_rows`` rows or ``batch_bytes``; a smaller batch when its first row has waited for the
            ``buffer_timeout_s`` of its writer. An :class:`Event` by itself, after all records that its producer wrote
            before it.
            ``None``: nothing within the time, or all is read (then :attr:`finished` is true).

        Raises
        ------
        StallTimeout
            Producers that are awaited have not connected, and nothing came while the gate was waited on for
            ``stall_timeout_s``, by this call or by several; or nobody can ever write or unblock a channel, as this is
            the only thread.
        RuntimeError
            This very thread is just reading the gate (a record's own code): nothing is done.
        """
        if timeout is not None and timeout != timeout:
            raise ConfigError("timeout is nan: it must be a number of seconds, or None")
        cdef int64_t ran
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
        """Raises, if somebody should have moved; forever: the caller does nothing else until something comes."""
        cdef uint32_t n = gate_channels(self.core)
        expected = len(self.sealed) if self.sealed is not None else self.channels
        self.quiet_ns = 0
        if expected is not None and n < <uint32_t> expected:
            raise StallTimeout(self.describe_stall())
        if not forever or n == 0 or len(sys._current_frames()) > 1:
            return 0
        if expected is not None and gate_all_wait(self.core):
            raise StallTimeout(
                f"gate {self.gate_id} waits in its only thread, and all its channels that have not ended are blocked: "
                "unblock one before the gate is read, or in another thread")
        if n == self.intake.locals:
            raise StallTimeout(
                f"gate {self.gate_id} waits for writers of this process, in its only thread: nobody can write or close "
                "them. Close the writer before the gate is read, or write in another thread")
        return 0

    def waited(self, double seconds):
        """An event loop has waited for the gate so long."""
        self.quiet_ns += min(seconds_ns(seconds), 2 * <int64_t> SLICE_NS)

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
        if self.finished:
            return None
        self.check_process()
        if self.intake.within:
            self.check_outside()
        while True:
            if fb_u32_load_acquire(&self.is_closed):
                raise ExchangeClosed(f"gate {self.gate_id} is closed")
            failure_raise(&self.core.failure)
            # The eventcount's order for those who look first: epoch, look, announce, sleep.
            key = fb_event_epoch(self.core.event)
            now = fb_now_ns()
            came = intake.drain(now)
            if intake.event is not None and not intake.waiting():
                return intake.take_event()
            if intake.enough():
                return intake.give_out()
            if self.complete():
                self.finished = True
                return intake.give_out() if intake.waiting() else None
            now = fb_now_ns()
            if came:
                self.quiet_ns = 0
            if intake.waiting() and now >= self.give_out_ns():
                return intake.give_out()
            if 0 <= self.stall_ns < self.quiet_ns:
                self.stall(deadline < 0)
            if 0 <= deadline <= now:
                return None
            gate_serve(self.core)
            until = now + SLICE_NS
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
            channels = intake.hints(looks)      # with the gate's lock: they stay until we look again
            with nogil:
                self.sleep(key, until, looks, channels, driver, not in_place)
            looked = fb_now_ns()
            fb_activity_enter(&self.doing, FB_RUNS, 0, looked)
            slept = looked - now
            self.quiet_ns += min(slept, 2 * <int64_t> SLICE_NS)     # no more: this process stood still itself
            PyErr_CheckSignals()

    cdef int64_t give_out_ns(self) noexcept:
        # A batch of columns may still grow for as long as its producers have buffers wait to be full; records need not.
        return self.intake.first_row_ns + (self.intake.linger_ns if self.intake.assembler is not None else 0)

    cdef bint spin(self, uint32_t key, int64_t until, SharedLook *looks, int channels) noexcept nogil:
        """Whether something came, within the little that a sleep would cost."""
        cdef int64_t limit = min(self.spin_ns, until - fb_now_ns())
        cdef bint came
        if channels == 0 or self.spin_most == 0:
            return False
        if channels <= MOST_LOOKS:
            came = shared_spin(looks, channels, self.core.event, key, limit)
        else:
            came = fb_event_spin(self.core.event, key, limit) != 0
        if came:
            self.spin_ns = self.spin_most
            return True
        self.spin_ns = max(self.spin_ns // 2, LEAST_SPIN_NS)
        return False

    cdef void sleep(self, uint32_t key, int64_t until, SharedLook *looks, int channels, Driver *driver,
                    bint alone) noexcept nogil:
        """Until something comes after `key` was the event's epoch, or until then; alone: all comes by the driver.

        looks: where so many memfd channels are looked at, the first MOST_LOOKS of them.
        """
        cdef fb_event *e = self.core.event
        if driver != NULL:
            # What comes through memory is not to be had of the driver: its looks would be so many that are not there.
            if alone and driver.drive(driver, &self.drive, e, key, until):
                driver.leave(driver, False)
                return
            driver.sleeps(driver)
        # A peer in another process that is just writing is not waited for by a system call, as long as that pays.
        if self.spin(key, until, looks, channels):
            if driver != NULL:
                driver.leave(driver, True)
            return
        if fb_event_prepare(e) == key and not fb_u32_load_acquire(&self.is_closed) and \
                not failure_code(&self.core.failure) and \
                not shared_came(looks, min(channels, <int> MOST_LOOKS)):     # a burst is not told of buffer by buffer
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
            if self.pending_at < len(self.pending):
                record = self.pending[self.pending_at]
                self.pending[self.pending_at] = None        # given out: it is the caller's alone
                self.pending_at += 1
                return record
            got = self.poll()
            if got is None:
                self.pending = []
                raise StopIteration
            if isinstance(got, Event):
                return got
            self.pending = <list> got
            self.pending_at = 0

    # ---- in an event loop

    def arm_wake(self):
        """The descriptor that becomes readable when something comes from now on (see ``asynchronous``)."""
        with self.lock:
            self.check_process()
            if fb_u32_load_acquire(&self.is_closed):
                raise ExchangeClosed(f"gate {self.gate_id} is closed")
            descriptor = self.wake_descriptor()
            gate_arm(self.core)
            fb_activity_enter(&self.doing, FB_WAIT_INPUT, 0, fb_now_ns())    # until it is read again
            return descriptor

    def due_in(self, double most):
        """Seconds until the clock alone has something for the reader, which no descriptor tells; `most` at most."""
        cdef int64_t due = self.intake.flush_due_ns
        if self.intake.waiting() and (due < 0 or self.give_out_ns() < due):
            due = self.give_out_ns()
        return most if due < 0 else min(most, max(due - fb_now_ns(), <int64_t> 0) / 1e9)

    def wake_descriptor(self):
        """The eventfd of this gate, made when it is first asked for."""
        # Without the gate's lock, which a reader holds while it waits: nothing here lets go of the GIL.
        if self.freed:
            raise ExchangeClosed(f"gate {self.gate_id} is closed")
        if self.wake_fd < 0:
            self.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
            if self.wake_fd < 0:
                raise ResourceError("no descriptor for a gate's eventfd (see ulimit -n)")
            fb_u32_store_release(&self.core.wake_fd, <uint32_t> self.wake_fd)
        return self.wake_fd

    def poll_async(self, timeout=None):
        """``await gate.poll_async()``: as :meth:`poll`, in a coroutine, while other coroutines run."""
        return asynchronous.poll_async(self, timeout)

    def __aiter__(self):
        return asynchronous.AsyncReader(self)

    # ---- ending

    def abort(self, reason="the consumer gave up"):
        """Give up, from any thread and at once: whoever reads fails with `reason`, and so does every producer.

        The gate is closed all the same. To say that it was enough, which is no error for anybody, close it without.
        """
        cdef bytes text = str(reason).encode("utf-8", "replace")
        if fb_u32_load_acquire(&self.is_closed) or self.forked():
            return
        self.untold = True          # before the failure: a reader that stops for that says it to those read in place
        gate_fail(self.core, FAIL_ABORTED, text, len(text))
        gate_abort(self.core)
        self._abort_in_place()

    def _abort_in_place(self):
        # What is read in place may be taken back from here on, so nobody may be reading: whoever has the lock just now
        # does it when he lets go of it, and a record's own code leaves it to the call that decodes the record.
        if self.lock.acquire(blocking=False):
            try:
                if not self.freed and self.intake.within != <unsigned long> PyThread_get_thread_ident():
                    self.untold = False
                    self._end_in_place()
            finally:
                self.lock.release()

    def close(self):
        """End the gate, from any thread; a second call does nothing.

        Before its end it says that what came is enough: producers hear of a cancel (:attr:`RecordWriter.cancelled`),
        drop what they write for this gate from then on, and see no error. Of a gate that has failed, or was aborted,
        they hear why instead, as an error. ``with gate:`` closes it so, and aborts it if an exception leaves the block.

        Raises
        ------
        RuntimeError
            This very thread is reading the gate (a signal handler, or a record's own code): nothing is done.
        """
        self.end(None)

    def end(self, reason):
        """As :meth:`close`, by the environment; `reason`, unless None, is what producers hear if it is not finished."""
        cdef bytes text
        if self.freed or self.forked():
            return
        self.check_outside()
        fb_u32_store_release(&self.is_closed, 1)
        if reason is not None and not self.finished:
            text = str(reason).encode("utf-8", "replace")
            failure_set(&self.core.failure, FAIL_ABORTED, text, len(text))
        gate_notify(self.core)       # a reader blocked in another thread leaves with ExchangeClosed
        with self.lock:
            if not self.freed:
                self._cancel()
                self.environment.release_gate(self)

    def _cancel(self):
        # Cancels every open channel; queued segments go home.
        gate_cancel(self.core)
        self._end_in_place()

    def _end_in_place(self):
        # Producers that are read in place drop what they write from now on, or fail as those of other processes do when
        # the gate has failed.
        cdef ChannelReader r
        for r in self.intake.in_place:
            if failure_code(&self.core.failure):
                r.end(SHARED_ABORTED, self.core.failure.text)
            else:
                r.end(SHARED_CANCELLED, b"")

    def free(self):
        """Last step of :meth:`close`, by the environment: no transport points here any more."""
        if self.freed:
            return
        self.final_stats = self.stats()
        self.freed = True
        local_set_listener(self.pool.core, NULL)
        if self.intake.locals == 0:
            gate_free(self.core)
            self.core = NULL
        # Else local writers may still notify this core: each keeps the gate, and the last to go frees it.
        self.intake.forget()
        self.bell.keep_to_ourselves()
        self.pending = []
        self.pool.destroy()

    def __enter__(self):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, value, traceback):
        self.__exit__(kind, value, traceback)

    def __exit__(self, kind, value, traceback):
        if kind is not None and not fb_u32_load_acquire(&self.is_closed):
            self.abort(f"{kind.__name__}: {value}".removesuffix(": "))
        self.close()

    # ---- figures

    @property
    def address(self):
        """What a producer of another process is given as its target: a :class:`GateAddress`, with the secret in it.

        Raises
        ------
        ConfigError
            The environment does not listen yet.
        """
        if self.environment.address is None:
            raise ConfigError(
                f"gate {self.gate_id} has no address: its environment does not listen (call env.listen() before)")
        return GateAddress(*self.environment.address, self.gate_id, self.secret)

    def __repr__(self):
        # Whoever asks may not have the gate's lock: each figure is of its own moment.
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
        """The state of a waiting gate, for people."""
        if self.freed:          # whoever asks may not have the gate's lock
            return f"gate {self.gate_id} is closed"
        n, waiting = stalled_channels(self.core)
        expected = self.channels if self.channels is not None else "an unknown number of"
        return (
            f"gate {self.gate_id} got nothing for {self.config.stall_timeout_s} s: {n} of "
            f"{expected} channels have connected; {'; '.join(waiting[:8]) or 'none is open'}; pool: {self.pool.in_use} "
            f"segments in use, limit {self.pool.limit}. The producers are slow or stuck, or were not started; "
            f"raise stall_timeout_s ({self.config.stall_timeout_s}; None: no limit)")

    @property
    def closed(self):
        """Whether `close` was called."""
        return fb_u32_load_acquire(&self.is_closed) != 0

    @property
    def records_in(self):
        """Records, or rows, given out so far."""
        return self.intake.records_in

    def stats(self):
        """Figures so far: records, bytes, buffers, channels, peak_segments, segments (the cap), wait_s."""
        cdef uint64_t received, n_bytes
        if self.freed:
            return dict(self.final_stats)
        gate_figures(self.core, &n_bytes, &received)
        channels = gate_channels(self.core)     # before the pool's, which may let another thread close the gate
        stats = self.pool.stats()
        return {
            "records": self.intake.records_in,
            "bytes": n_bytes,
            "buffers": received,
            "channels": channels,
            "peak_segments": stats.peak,
            "segments": stats.maximum,
            "wait_s": activity_waited_s(&self.doing),
        }

    def activity(self):
        """What its reader does just now: as of :meth:`RecordWriter.activity`; ``"input"``: it waits for producers."""
        return activity_figures(&self.doing)

    def gauges(self):
        """Its segments and queues just now, by Flink's names.

        Returns
        -------
        dict
            ``exclusiveBuffersUsage``, ``floatingBuffersUsage`` and, of both, ``inPoolUsage``: which share of its
            segments has data that its reader is not done with, 0 to 1 (a segment that is announced as credit and not
            used does not count; channels that are read in place have none). ``inputQueueLength``: buffers that wait
            for its reader, or are read just now.
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
        """Prove the credit invariants of every channel, at one moment; raises naming the one that breaks them."""
        if not self.freed:
            audit_gate(self.core)
        return True

    def forked(self):
        """Whether this is a forked child, which must not touch its parent's exchange."""
        return fork_count() != self.forks

    cdef int check_outside(self) except -1:
        # The lock lets this thread in again; a reader in another one is waited for.
        if self.intake.within == <unsigned long> PyThread_get_thread_ident():
            raise RuntimeError(f"gate {self.gate_id} is just decoding a record in this thread: use it afterwards")
        return 0

    cdef int check_process(self) except -1:
        if fork_count() != self.forks:
            raise ExchangeClosed(f"gate {self.gate_id} belongs to the parent process: make one of your own")
        return 0
