"""The record writer: serializes records straight into segments, with one open buffer per subpartition.

Every step is a *pump*: it writes as far as segments and queues allow, and remembers its place.  The blocking calls pump
and wait on the partition's event.  The others pump and return, so that a thread that both writes and reads can read
meanwhile.
"""

from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastbuf._native.activity cimport fb_activity_coded, fb_activity_ran
from fastbuf._native.atomics cimport *
from fastbuf.exchange.batch_writer cimport BatchWriter
from fastbuf.exchange.channel_selector cimport ChannelSelector
from fastbuf.exchange.clock cimport seconds_ns
from fastbuf.exchange.failure cimport failure_code
from fastbuf.exchange.long_records cimport PREFIX
from fastbuf.exchange.result_partition cimport WRITE_BLOCKED, WRITE_DROPPED, OpenBuffer, ResultPartition, WriteState
from fastbuf.serializers.columnar cimport ColumnarSerializer
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.row_encode cimport write_run
from fastbuf.serializers.serializer cimport Serializer

from fastbuf.checks import records_given, seconds, whole
from fastbuf.errors import ExchangeClosed, RecordError, SchemaError, left_by
from fastbuf.exchange import asynchronous_writer
from fastbuf.exchange.events import encode_event

cdef enum:
    RUN = 64                    # records of a list between two checks for failures, and two notices to drainers


cdef class RecordWriter(BatchWriter):
    """RecordWriter(partition, serializer, selector)\n--\n
    Writes one producer's records to all consumers.

    Made by :meth:`ShuffleEnvironment.create_result_partition` or :meth:`ShuffleEnvironment.exchange`.
    One thread at a time.  If it is dropped before it was closed, its consumers fail.
    """

    def __init__(self, ResultPartition partition, Serializer serializer, ChannelSelector selector):
        serializer.check_made()
        self.serializer = serializer
        self.selector = selector
        selector.bind(partition.subpartitions, serializer.schema)
        selector.attach(partition)
        self.to_all = selector.to_all
        self.longest = partition.config.max_record_bytes
        self.flush_always = partition.flush_ns == 0
        if isinstance(serializer, RowSerializer) and not serializer.tail_head:
            self.plan = (<RowSerializer> serializer)._plan.root
        if serializer.kind == "columnar":
            self.scatter = (<ColumnarSerializer> serializer).scatter(partition.subpartitions + selector.dropped)
        self.partition = partition      # last: only a writer that is whole is missed (__del__)

    def __del__(self):
        # The collector may call this in any thread, whatever locks it holds: nothing here waits, or takes a lock.
        cdef ResultPartition p = self.partition
        if p is None or p.closed or p.ended or p.forked():
            return
        p.fail(f"producer {p.channel}: its writer was dropped without close(); use 'with writer:'")
        p.environment.dropped.append(p)

    # ---- batches

    def emit_batch(self, batch):
        """Write a record batch, waiting without the GIL while there is no credit.

        Parameters
        ----------
        batch : pyarrow.RecordBatch or Table, NumPy structured array, pandas or polars DataFrame
            Or any other object with ``__arrow_c_array__`` or ``__arrow_c_stream__``.

        Raises
        ------
        RecordTooLong
            A row is longer than ``max_record_bytes``; the message names it.  Nothing of the batch was written, and the
            writer can be used further.
        StallTimeout
            No consumer took anything for ``stall_timeout_s``.
        ExchangeAborted, PeerLost
            The exchange failed.
        """
        if self.selector.by_room:
            self.wait_for_room()
        cdef int64_t ran = fb_activity_ran(&self.partition.core.activity, fb_now_ns())
        self.begin_batch(batch)
        self.finish_pending()
        fb_activity_coded(&self.partition.core.activity, ran, fb_now_ns())

    def try_emit_batch(self, batch):
        """Write as much of the batch as segments allow; ``False``: call :meth:`resume` until it returns ``True``."""
        cdef int64_t ran = fb_activity_ran(&self.partition.core.activity, fb_now_ns())
        self.begin_batch(batch)
        fb_activity_coded(&self.partition.core.activity, ran, fb_now_ns())
        return self.resume()

    def resume(self):
        """Continue what :meth:`try_emit_batch` or :meth:`try_emit` began; ``True`` when it is written."""
        cdef int64_t ran
        self.partition.check()
        if self.in_batch:
            ran = fb_activity_ran(&self.partition.core.activity, fb_now_ns())
            written = self.pump_batch() == 1
            fb_activity_coded(&self.partition.core.activity, ran, fb_now_ns())
            return written
        return self._written(self.pump_spill())

    cdef bint _written(self, int done) except -1:
        # With a buffer timeout of 0 the transport has no timer: the writer flushes after each record.
        if done and self.flush_always:
            self.flush_now()
        return done

    # ---- records

    cdef int write_record(self, int part, object record) except -1:
        """1: written, 0: partly written (pump_spill finishes it)."""
        cdef ResultPartition p = self.partition
        if p.closed or p.ended:
            p.refuse_write()
        if p.writing:
            p.refuse_second()
        # Like begin_writing, since encoding may run the user's code
        p.writing = p.written_by = <unsigned long> PyThread_get_thread_ident()
        try:
            return self.encode_into(part, record, 0)
        finally:
            p.writing = 0

    cdef inline int encode_into(self, int part, object record, Py_ssize_t n) except -1:
        """1: written, 0: partly written; n: the record's length if it is known not to fit the open buffer, else 0."""
        cdef ResultPartition p = self.partition
        cdef OpenBuffer *b
        cdef Py_ssize_t room
        cdef uint32_t length
        cdef PyObject *tail = NULL
        cdef WriteState state = p.open_buffer(part, False)
        if state == WRITE_DROPPED:
            return 1
        if state != WRITE_BLOCKED and n == 0:
            b = &p.buffers[part]
            room = <Py_ssize_t> p.segment_size - b.fill - PREFIX
            if room > 0:
                n = self.serializer.encode_head(record, b.data + b.fill + PREFIX, room, &tail)
                if tail != NULL and not p.lagging:
                    return self.put_tail(part, n, tail)
                if tail != NULL:
                    n = self.forget_tail(room + 1, tail)
                if n > self.longest:
                    self.refuse(n)
                if n <= room:
                    length = <uint32_t> n
                    memcpy(b.data + b.fill, &length, PREFIX)
                    p.commit(part, length + PREFIX)
                    return 1
        if p.lagging:
            p.finish_shared()       # consumers that skip buffers can go on where a record begins with one
        while True:
            self.reserve(max(n, <Py_ssize_t> 64) + PREFIX)
            room = self.scratch_room - PREFIX
            n = self.serializer.encode_head(record, self.scratch + PREFIX, room, &tail)
            if tail != NULL:
                break
            if n > self.longest:
                self.refuse(n)
            if n <= room:
                break
        length = <uint32_t> self.whole(n, tail)
        memcpy(self.scratch, &length, PREFIX)
        return self.spill(part, n + PREFIX, tail)

    cdef int begin_record(self, object record) except -1:
        """1: written, 0: partly written.  Errors name the record's number."""
        cdef int part
        try:
            part = self.partition.subpartitions if self.to_all else self.selector.select(record)
            return self.write_record(part, record)
        except Exception as error:
            self.explain(record, error)
            raise

    cdef int explain(self, object record, object error) except -1:
        """Raises an error that names the record, if `error` does not do so."""
        if isinstance(error, RecordError):
            raise type(error)(f"record {self.records}: {error}") from error.__cause__
        if isinstance(error, SchemaError):
            return 0
        if isinstance(error, (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)):
            # A selector that reads fields fails first on a wrong one; the serializer's message is better.
            if self.serializer.schema is not None and self.selector.by_fields:
                try:
                    self.serializer.encode(record)
                except RecordError as refused:
                    raise type(refused)(f"record {self.records}: {refused}") from error
        return 0

    cdef int emit_one(self, object record) except -1:
        if self.spill_left:
            self.finish_pending()
        self.partition.check_quickly()
        if self.selector.by_room:
            self.wait_for_room()
        done = self.begin_record(record)
        self.records += 1           # now: if the wait is interrupted, the next call writes the rest
        if not done:
            self.finish_pending()
        if self.flush_always:
            self.flush_now()
        return 0

    def emit(self, record):
        """Write one record, waiting without the GIL while there is no credit.

        It leaves when its buffer is full, after ``buffer_timeout_s`` (0.1 s; 0: at once), or by :meth:`flush`.

        If the wait is interrupted (Ctrl-C), the record counts as written: the next call writes what is left of it.

        Raises
        ------
        RecordError
            The record does not fit the schema.  The message names the field, the value and the record's number (how
            many records this writer has written before).  Nothing of it was written; the writer can be used further.
        RecordTooLong
            The record is longer than ``max_record_bytes``; nothing was written, as above.
        RuntimeError
            Called from code of a record that this writer is encoding; nothing was written.
        """
        if self.scatter is not None:
            raise TypeError("a columnar writer takes record batches: use emit_batch")
        self.emit_one(record)

    def emit_many(self, records):
        """Write every record of an iterable; errors are as in :meth:`emit`, and records before them are written."""
        if self.scatter is not None:
            raise TypeError("a columnar writer takes record batches: use emit_batch")
        if type(records) is list and not self.flush_always and not self.selector.by_room:
            self.emit_list(<list> records)
            return
        for record in records_given(records):
            self.emit_one(record)

    cdef int emit_list(self, list records) except -1:
        cdef ResultPartition p = self.partition
        cdef Py_ssize_t i = 0
        while i < len(records):                 # encoding may run code that changes the list
            if self.spill_left:
                self.finish_pending()
            p.check_quickly()
            if p.ended:
                p.refuse_write()
            if p.writing:
                p.refuse_second()
            p.writing = p.written_by = <unsigned long> PyThread_get_thread_ident()  # as write_record
            try:
                self.emit_run(records, &i)
            finally:
                p.writing = 0
        if self.spill_left:
            self.finish_pending()
        return 0

    cdef int emit_run(self, list records, Py_ssize_t *i) except -1:
        """Writes records from number `i` on until one has to wait; `i` is moved past those that were written."""
        cdef ResultPartition p = self.partition
        cdef Py_ssize_t was
        cdef int touched[RUN]
        cdef int n, k, done = 1
        while done and i[0] < len(records) and not p.closed and not failure_code(&p.core.failure):
            was = i[0]
            n = 0
            try:
                done = self.write_some(records, i, touched, &n)
            except Exception as error:
                self.records += i[0] - was
                was = i[0]
                self.explain(records[was] if was < len(records) else None, error)
                raise
            finally:
                self.records += i[0] - was
                for k in range(n):
                    p.buffers[touched[k]].touched = False
                    if p.buffers[touched[k]].segment >= 0:
                        p.commit(touched[k], 0)
        return 0

    cdef int write_some(self, list records, Py_ssize_t *i, int *touched, int *n) except -1:
        """Writes up to RUN records; 0: the last one has to wait.  The caller commits the buffers in `touched`."""
        cdef ResultPartition p = self.partition
        cdef OpenBuffer *b
        cdef Py_ssize_t end = i[0] + RUN, size, was
        cdef int always = self.selector.always if self.plan != NULL or self.to_all else -1
        cdef int part, done = 1
        cdef object record
        while done and i[0] < end and i[0] < len(records):
            record = records[i[0]]
            if not isinstance(record, tuple):
                end = i[0] + 1          # its code may close or fail the partition: check before the next record
            part = always if always >= 0 else self.selector.select(record)
            size = 0
            if self.plan != NULL:
                b = &p.buffers[part]
                if b.segment < 0 or part == p.subpartitions or fb_u32_load_acquire(&p.subs[part].cancelled):
                    if p.open_buffer(part, False) == WRITE_DROPPED:
                        i[0] += 1
                        continue
                if b.segment >= 0:
                    if not b.touched:
                        b.touched = True
                        touched[n[0]] = part
                        n[0] += 1
                    was = i[0]
                    size = write_run(self.plan, records, i, end - was if always >= 0 else 1, b.data, &b.fill,
                                     p.segment_size, self.longest)
                    if b.fill == p.segment_size:
                        p.commit(part, 0)
                    if i[0] > was:
                        if size == 0 or i[0] >= len(records):
                            continue
                        record = records[i[0]]
            done = self.encode_into(part, record, size)
            i[0] += 1
        return done

    def try_emit(self, record):
        """Write one record; ``False``: it is partly written, call :meth:`resume` until it returns ``True``."""
        cdef int done
        if self.scatter is not None:
            raise TypeError("a columnar writer takes record batches: use try_emit_batch")
        if self.spill_left:
            raise ExchangeClosed("the record before is not written yet: call resume() until it returns True")
        self.partition.check()
        done = self.begin_record(record)
        self.records += 1
        return self._written(done)

    # ---- in an event loop

    @property
    def pending(self):
        """Whether a record or a batch is partly written: the next call writes the rest."""
        return self.in_batch or self.spill_left != 0

    def has_room(self):
        """Whether a selector that waits for room, as :func:`first_free`, could choose a consumer now."""
        self.partition.check()
        return not self.selector.by_room or self.partition.any_room()

    def emit_async(self, record):
        """``await writer.emit_async(record)``: like :meth:`emit`; other coroutines run meanwhile.

        Tasks that write by the same writer get their turns in the order in which they came. If it is cancelled before
        its turn, nothing was written; later the record counts as written (in :attr:`records`), as in :meth:`emit`: the
        next call writes what is left of it.
        """
        return asynchronous_writer.emit_async(self, record)

    def emit_batch_async(self, batch):
        """Like :meth:`emit_batch`, in a coroutine. If the wait is cancelled, the next call writes the batch's rest."""
        return asynchronous_writer.emit_batch_async(self, batch)

    def emit_event_async(self, event):
        """Like :meth:`emit_event`, in a coroutine. If the wait is cancelled, the event was not sent."""
        return asynchronous_writer.emit_event_async(self, event)

    def flush_async(self):
        """Like :meth:`flush`, in a coroutine; first it writes what a call before it has left."""
        return asynchronous_writer.flush_async(self)

    def close_async(self):
        """Like :meth:`close`, in a coroutine; ``async with writer:`` ends by it."""
        return asynchronous_writer.close_async(self)

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, value, traceback):
        await asynchronous_writer.leave(self, kind, value)

    # ---- events

    def emit_event(self, event):
        """Send an event to every consumer, after everything written so far; it takes no credit.

        Parameters
        ----------
        event : Event
            As ``Barrier(7)``.
        """
        cdef bytes data = encode_event(event)
        cdef int64_t since = 0
        cdef uint64_t seen = 0
        cdef uint32_t key
        if self.in_batch or self.spill_left:
            self.finish_pending()
        while not self.partition.queue_event(data):
            key = fb_event_prepare(self.partition.core.event)
            if self.partition.queue_event(data):
                return
            self.partition.wait(key, -1, &since, &seen)

    def try_emit_event(self, event):
        """Like :meth:`emit_event` without waiting; ``False``: a consumer has too many unread events, nothing was sent.
        """
        if self.in_batch or self.spill_left:
            raise ExchangeClosed("the record or batch before is not written yet: call resume() until it returns True")
        return self.partition.queue_event(encode_event(event)) == 1

    # ---- a blocking partition's consumers

    def finish(self):
        """Write the end of partition; nothing can be written afterwards.

        A blocking partition is then complete on disk, and consumers can read; :meth:`close` sends it to remote ones.
        """
        self.partition.check()
        if self.in_batch or self.spill_left:
            self.finish_pending()
        self.partition.end()

    def attach(self, index, target):
        """Name the consumer of subpartition `index` of a blocking partition that was made without one, at any time.

        Parameters
        ----------
        index : int
        target : InputGate or tuple
            As in :meth:`ShuffleEnvironment.create_result_partition`.
        """
        self.partition.environment.attach(self.partition, index, target)

    # ---- ending

    def flush(self):
        """Send everything written so far now."""
        self.partition.flush()

    def try_close(self):
        """Write the end of partition without waiting; ``True`` once every remote consumer has acknowledged it."""
        if self.partition.closed:
            return True
        self.partition.check()
        if self.in_batch or self.spill_left:
            if not self.resume():
                return False
        self.partition.end()
        if not self.partition.remote_closed():
            return False
        self.partition.check()
        self._let_go()
        return True

    def close(self, timeout=None):
        """Write the end of partition and wait until every remote consumer has it. A second call does nothing.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; default: as long as there is progress (``stall_timeout_s``).

        Raises
        ------
        TimeoutError
            The time has passed; the writer is still open.
        """
        cdef int64_t deadline = -1 if timeout is None else fb_now_ns() + seconds_ns(seconds("timeout", timeout))
        if self.partition.closed:
            return
        self.partition.check()
        if (self.in_batch or self.spill_left) and self.finish_pending(deadline):
            raise TimeoutError(
                f"writer {self.partition.channel}: no consumer made room for its last record within {timeout} s")
        self.partition.end()
        if not self.partition.wait_closed(deadline):
            raise TimeoutError(
                f"writer {self.partition.channel}: some consumers did not acknowledge the end of partition within "
                f"{timeout} s")
        self._let_go()

    def abort(self, reason="the producer gave up"):
        """Give up: every consumer fails with `reason`. Does nothing on a closed writer, or in a forked child."""
        if self.partition.closed or self.partition.forked():
            return
        self.partition.fail(str(reason))
        self.partition.wait_aborted(1.0)
        self._let_go()

    def _let_go(self):
        self.in_batch = False
        self.spill_left = 0
        self.spill_tail = None
        self.partition.environment.release_partition(self.partition)
        # Only now: another thread may have been encoding the batch until here.  One that begins a batch ends it itself.
        if self.scatter is not None and not self.beginning:
            self.scatter.end()

    def __reduce__(self):
        raise TypeError("a RecordWriter belongs to its process and cannot be copied: make one in the other process, "
                        "with gate.address as the target")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            try:
                self.close()
            except BaseException as error:
                # Nobody will call close() again, so its segments must be freed now.
                self.abort(left_by("the producer", type(error), error))
                raise
        else:
            self.abort(left_by("the producer", kind, value))

    # ---- figures

    def __repr__(self):
        p = self.partition
        state = "closed" if p.closed else "cancelled" if p.cancelled else "failed" if failure_code(&p.core.failure) \
            else "finished" if p.ended else "open"
        s = p.pool.stats()
        return (f"<RecordWriter of producer {p.channel}: {state}, {p.subpartitions} consumers, {self.records} records, "
                f"{s.in_use} of {s.maximum} segments in use>")

    @property
    def cancelled(self):
        """Whether every consumer has cancelled; everything written from then on is dropped.

        A consumer cancels by closing its gate before the end (``gate.close()``, or leaving ``with gate:`` without an
        exception). If a consumer fails, or its environment is closed first, this stays False and the writer's next call
        raises :class:`ExchangeAborted`. With ``on_peer_loss="cancel"`` a lost consumer counts as cancelled.
        """
        return self.partition.cancelled

    @property
    def closed(self):
        """Whether the writer was closed or aborted."""
        return self.partition.closed

    def activity(self):
        """What the writer is doing, and how long it spent in each state.

        Returns
        -------
        dict
            ``state``: ``"runs"``, or what it waits for: ``"credit"`` (the consumer gave none), ``"link"`` (the socket
            is full), ``"segment"`` (the pool is empty, and nothing is queued). ``target``: the consumer that it waits
            for, or None. ``since_s``: how long it has been in that state. ``seconds`` and ``longest_s``: by state,
            including a wait that has not ended. Time spent encoding batches (in a gate: decoding) is not in ``"runs"``
            but in ``"codec"``, once the call is over; for single records it stays in ``"runs"``.
        """
        return self.partition.activity()

    def blocked_s(self, link=False):
        """Seconds that the writer has waited for each consumer, including a wait that has not ended.

        Parameters
        ----------
        link : bool
            Count only waits in which the socket was full.
        """
        return self.partition.blocked_s(link)

    def watch_keys(self, values=False):
        """Count from now on which keys are most frequent, from one record in 1,024; needs a selector that hashes keys.

        Parameters
        ----------
        values : bool
            Keep the text of those keys too.
        """
        self.selector.watch_keys(values)

    def hot_keys(self):
        """The most frequent keys: at least which share of the records each has, and its partition.

        Returns
        -------
        dict of int to tuple of float and int
            By 30 bits of the key's hash, ``hash_partition(key, 2**30)``: its share, and its partition. Empty without
            :meth:`watch_keys`. :meth:`key_values` gives the keys themselves.
        """
        return self.selector.hot_keys()

    def key_values(self):
        """The keys of :meth:`hot_keys` as one-line texts, by their hashes.

        Returns
        -------
        dict of int to str
            Empty without ``watch_keys(values=True)``.
        """
        return self.selector.key_values()

    def gauges(self):
        """Current use of its pool and its queues.

        Returns
        -------
        dict
            Flink's ``outPoolUsage`` (0 to 1) and ``outputQueueLength`` (buffers); ``short_s``: seconds that the writer
            waited for a segment although the consumer's queue had room.
        """
        return self.partition.gauges()

    def digest(self):
        """Sum of the hashes of all keys, dropped rows included; None: keys are not hashed; one consumer: 0."""
        return self.selector.digest()

    def dropped(self):
        """Buffers and events that each consumer of a broadcast did not get; see ``on_slow_consumer``."""
        return self.partition.dropped()

    def records_dropped(self):
        """Records (of columns: rows) that each consumer of a broadcast did not get, by ``"drop_oldest"``.

        Their consumers know how many, too: ``records_missed`` in :meth:`InputGate.stats`, once they are past the gap.
        """
        return self.partition.dropped(records=True)

    def totals(self, consumer=None):
        """Buffers sent to each consumer, in a list; final after :meth:`close`, and for a gate of this process once it
        has read everything.

        Parameters
        ----------
        consumer : int, optional
            The number of a consumer: what :meth:`InputGate.seal` of its gate takes, ``{channel: buffers}``. Of several
            writers: ``first.totals(0) | second.totals(0)``.
        """
        totals = self.partition.totals()
        if consumer is None:
            return totals
        return {self.partition.channel: totals[whole("consumer", consumer, 0, len(totals) - 1)]}

    def stats(self):
        """Figures so far: records, bytes, buffers, peak_segments, segments (the cap), wait_s; channels by transport
        (transports), and how many use TCP because shared memory could not be used (fallbacks); of slow consumers of a
        broadcast: buffers_dropped, records_dropped, and consumers_cut.
        """
        stats = self.partition.pool.stats()
        return {
            "records": self.records,
            "bytes": self.partition.bytes_out,
            "buffers": sum(self.partition.totals()),
            "peak_segments": stats.peak,
            "segments": stats.maximum,
            "wait_s": self.partition.wait_s,
            "transports": self.partition.transports_used(),
            "fallbacks": self.partition.fallbacks,
            "buffers_dropped": sum(self.partition.dropped()),
            "records_dropped": sum(self.partition.dropped(records=True)),
            "consumers_cut": self.partition.consumers_cut,
        }
