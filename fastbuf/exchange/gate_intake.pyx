"""A gate's intake: takes buffers of every channel in, and keeps what they held until it is given out."""

from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_exchange_acq_rel, fb_u32_load_acquire, fb_u64_load_relaxed
from fastbuf.exchange.failure cimport FAIL_ABORTED
from fastbuf.exchange.gate_core cimport (
    gate_channel,
    gate_fail,
    gate_release,
    gate_take_ready,
)
from fastbuf.exchange.input_channel cimport (
    CHANNEL_CANCELLED,
    CHANNEL_FINISHED,
    CHANNEL_OPEN,
    READY_EVENT,
    InputChannel,
    ReadyBuffer,
)
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport (
    EventBlob,
    Subpartition,
    event_data,
    sub_advance,
    sub_close,
    sub_event,
    sub_exhausted,
    sub_queued,
    sub_sendable,
)
from fastbuf.exchange.shared_block cimport SHARED_ABORTED, SHARED_CANCELLED, SHARED_DONE
from fastbuf.flow.flow_control cimport FLOW_PID_RATE, flow_reads
from fastbuf.exchange.shared_reader cimport (
    MOST_LOOKS,
    NEWS_BROKEN,
    NEWS_EVENT,
    NEWS_NONE,
    SharedLook,
    SharedNews,
    SharedReader,
)
from fastbuf.memory.pool_core cimport segment_data
from fastbuf.serializers.columnar cimport ColumnarSerializer
from fastbuf.serializers.columns cimport fb_ask_for
from fastbuf.serializers.element_view cimport ElementView
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.serializer cimport Serializer
from fastbuf.serializers.spanning cimport SpanningReader

from fastbuf.errors import BlockTruncated, ProtocolError
from fastbuf.exchange.events import decode_event


cdef class GateIntake:
    """What an input gate has taken in and not given out; the gate sets `core`."""

    def __init__(self, Serializer serializer, config, bint lazy=False):
        self.serializer = serializer
        self.config = config
        self.batch_rows = config.batch_rows
        self.batch_bytes = config.batch_bytes
        self.readers = []
        self.local_partitions = []
        self.shared = []
        self.records = []
        self.list_bytes = min(<Py_ssize_t> (VIEW_BYTES if lazy else LIST_BYTES), <Py_ssize_t> config.batch_bytes)
        if lazy:
            self.elements = ElementView(self.list_bytes + 2 * <Py_ssize_t> LIST_BYTES)
        if serializer.kind == "columnar":
            self.assembler = (<ColumnarSerializer> serializer).assembler()

    cdef SpanningReader reader(self, uint32_t index):
        cdef Py_ssize_t most = self.config.max_record_bytes
        if self.assembler is not None:
            most = max(most, <Py_ssize_t> self.core.buffers.pool.segment_size)      # an element is a chunk of many rows
        while len(self.readers) <= <Py_ssize_t> index:
            self.readers.append(SpanningReader(most))
        return <SpanningReader> self.readers[index]

    cdef int take_in(self, InputChannel *c, const uint8_t *data, uint32_t length) except -1:
        """All elements of one buffer."""
        cdef SpanningReader reader = self.reader(c.index)
        cdef const uint8_t *payload
        cdef Py_ssize_t n
        if self.first_row_ns == 0:
            self.first_row_ns = fb_now_ns()
            self.linger_ns = max(<int64_t> 0, c.flush_ns)
        elif c.flush_ns < self.linger_ns:
            self.linger_ns = max(<int64_t> 0, c.flush_ns)
        reader.feed(data, length)
        if self.assembler is not None:
            self.assembler.trust(c.local != NULL)
            while reader.next(&payload, &n):
                reader.ask_for_next(n)
                self.assembler.append(payload, n)
        else:
            if self.elements is not None:
                self.elements.take(reader)
            else:
                reader.collect(self.serializer, <list> self.records)
            self.record_bytes += length
        return 0

    cdef bint enough(self) noexcept:
        if self.event is not None:      # what comes after it is given out after it
            return True
        if self.assembler is not None:
            return self.assembler.rows >= self.batch_rows or self.assembler.nbytes >= self.batch_bytes
        # What has come of a long record that is not whole yet is nothing to be given out.
        return self.waiting() > 0 and (
            self.record_bytes >= self.list_bytes or self.waiting() >= self.batch_rows)

    cdef Py_ssize_t waiting(self) noexcept:
        if self.assembler is not None:
            return self.assembler.rows
        return self.elements.records if self.elements is not None else len(self.records)

    cdef int drain_remote(self) except -1:
        """Takes in what has arrived, until there is enough; 1 when something came."""
        cdef ReadyBuffer ready[READY_BATCH]
        cdef uint32_t n, i
        cdef Py_ssize_t most, segment = self.core.buffers.pool.segment_size
        cdef int came = 0
        while not self.enough():
            # A few at a time: what is taken is taken in, and its segments are credit again at once.  Not more than make
            # a list of records enough: they are to be given out while they are in the cache.
            most = READY_BATCH
            if self.assembler is None:
                most = min(most, (self.list_bytes - self.record_bytes + segment - 1) // segment)
            n = gate_take_ready(self.core, ready, <uint32_t> max(most, <Py_ssize_t> 1))
            if n == 0:
                break
            came = 1
            try:
                for i in range(n):
                    if ready[i].segment == READY_EVENT:
                        self.event = decode_event(
                            event_data(ready[i].event)[:ready[i].event.length], ready[i].channel.number)
                    elif ready[i].segment >= 0:
                        if i + 1 < n and ready[i + 1].segment >= 0:
                            fb_ask_for(segment_data(self.core.buffers.pool, ready[i + 1].segment),
                                       ready[i + 1].length)
                        self.take_in(ready[i].channel, segment_data(self.core.buffers.pool, ready[i].segment),
                                     ready[i].length)
                    elif not self.reader(ready[i].channel.index).clean():
                        raise BlockTruncated(f"channel {ready[i].channel.number} ended within a record")
            finally:
                if ready[n - 1].segment == READY_EVENT:
                    free(ready[n - 1].event)
                gate_release(self.core, ready, n)
        if self.core.flow.kind == FLOW_PID_RATE:
            flow_reads(&self.core.flow, came, self.records_in, fb_now_ns())
        return came

    cdef bint flush_is_due(self, InputChannel *c, int64_t now) noexcept:
        """Whether what this channel's producer has not filled yet is to be read in place too, as its timeout is over.

        By turns of the clock, not by how long a call waited, since whoever polls without waiting is owed it too; those
        of channels with the same timeout fall together, so that the reader wakes once for all.
        """
        cdef int64_t turn
        cdef bint due
        if c.flush_ns <= 0:
            return c.flush_ns == 0
        turn = now // c.flush_ns
        due = turn != c.flush_turn
        c.flush_turn = turn
        turn = (turn + 1) * c.flush_ns
        if self.flush_due_ns < 0 or turn < self.flush_due_ns:
            self.flush_due_ns = turn
        return due

    cdef int drain_local(self, int64_t now) except -1:
        """The same for local channels, which are read in place."""
        cdef InputChannel *c
        cdef Subpartition *s
        cdef EventBlob *event
        cdef ResultPartition partition
        cdef uint8_t *data
        cdef uint32_t length, k, n
        cdef uint64_t stored = 0
        cdef bint last, asked, partial
        cdef int came = 0
        n = <uint32_t> len(self.local_partitions)
        for k in range(n):
            index, partition = self.local_partitions[(self.local_turn + k) % n]
            c = gate_channel(self.core, <uint32_t> index)
            s = c.local
            if c.state != CHANNEL_OPEN:
                continue
            if fb_u32_load_acquire(&partition.core.abort_asked):
                gate_fail(self.core, FAIL_ABORTED, partition.core.failure.text, len(partition.core.failure.text))
                sub_close(s, True)
                c.state = CHANNEL_CANCELLED
                partition.reader_ended()
                return 1
            if c.blocked:
                continue
            asked = fb_u32_exchange_acq_rel(&s.flush_asked, 0) != 0
            partial = self.flush_is_due(c, now)
            while not self.enough():
                if not sub_sendable(s, partial or asked, &data, &length, &last):
                    # A blocking partition that is finished has the next of its file.
                    if sub_event(s) != NULL or not partition.refill(<int> (s - partition.subs)):
                        break
                    continue
                came = 1
                try:
                    self.take_in(c, data, length)
                finally:
                    sub_advance(s, length, last)
                c.received += 1
                self.local_buffers += 1
                self.local_bytes += length
            event = sub_event(s)
            if event != NULL and not self.enough():
                came = 1
                try:
                    self.event = decode_event(event_data(event)[:event.length], c.number)
                finally:
                    sub_advance(s, 0, True)
            if asked and self.enough() and sub_queued(s):
                # What was asked to leave may not all have left yet (enough was taken in).
                fb_u32_exchange_acq_rel(&s.flush_asked, 1)
            if sub_exhausted(s):
                if not self.reader(c.index).clean():
                    raise BlockTruncated(f"channel {c.number} ended within a record")
                c.announced_total = fb_u64_load_relaxed(&s.buffers)
                c.state = CHANNEL_FINISHED
                sub_close(s, False)
                partition.reader_ended()
                came = 1
            stored += partition.stored()
        if stored != self.stored:       # a producer that is not finished yet goes on
            self.stored = stored
            came = 1
        self.local_turn += 1
        return came

    cdef int look(self, SharedLook *looks) except -1:
        """Where to wait for what memfd channels bring; -> how many there are, and the first MOST_LOOKS of them."""
        cdef int n = 0
        for reader in self.shared:
            if gate_channel(self.core, (<SharedReader> reader).index).blocked:
                continue
            if n < MOST_LOOKS:
                (<SharedReader> reader).look(&looks[n])
            n += 1
        return n

    cdef int drain_shared(self, int64_t now) except -1:
        """The same for memfd channels, which are read in place in the producer's process's memory."""
        cdef SharedReader r
        cdef InputChannel *c
        cdef bytes text
        cdef uint32_t k
        cdef list readers = list(self.shared)           # those that end leave the list
        cdef uint32_t n = <uint32_t> len(readers)
        cdef int came = 0
        for k in range(n):
            r = <SharedReader> readers[(self.local_turn + k) % n]
            c = gate_channel(self.core, r.index)
            if r.writer_ended() == SHARED_ABORTED:
                text = r.writer_reason()
                gate_fail(self.core, FAIL_ABORTED, text, len(text))
                r.end(SHARED_CANCELLED, b"", 0)
                c.state = CHANNEL_CANCELLED
                self.shared.remove(r)
                return 1
            if c.blocked:
                continue
            came |= self.read_shared(r, c, self.flush_is_due(c, now))
            c.received = r.received
            if r.exhausted():
                if not self.reader(c.index).clean():
                    raise BlockTruncated(f"channel {c.number} ended within a record")
                c.announced_total = c.received
                c.state = CHANNEL_FINISHED
                r.end(SHARED_DONE, b"", 0)
                self.shared.remove(r)           # an ended process's arena is not kept for as long as the gate lives
                came = 1
        self.local_turn += 1
        return came

    cdef int read_shared(self, SharedReader r, InputChannel *c, bint partial) except -1:
        cdef const uint8_t *data
        cdef uint32_t length
        cdef bint last
        cdef SharedNews news
        cdef int came = 0
        try:
            while not self.enough():
                news = r.next(partial, &data, &length, &last)
                if news == NEWS_NONE:
                    break
                if news == NEWS_BROKEN:
                    raise ProtocolError(
                        f"producer {r.peer} (channel {c.number}) broke the protocol: it lends what its memory has not")
                came = 1
                if news == NEWS_EVENT:
                    self.event = decode_event(data[:length], c.number)
                    r.advance(0, True)
                    break
                if not r.enter():
                    break           # taken back: the producer's reason is there, or the end of its control line is near
                self.take_in(c, data, length)
                r.advance(length, last)
                self.local_buffers += 1
                self.local_bytes += length
        finally:
            r.leave()
        return came

    cdef int drain(self, int64_t now) except -1:
        """Takes in what has come and what `now` is the time for, until there is enough; 1: something came."""
        cdef int came
        cdef bytes text
        self.within = <unsigned long> PyThread_get_thread_ident()
        self.flush_due_ns = -1
        try:
            came = self.drain_remote()
            if self.local_partitions:
                came |= self.drain_local(now)
            if self.shared:
                came |= self.drain_shared(now)
            return came
        except BaseException as error:
            # Buffers were taken and not taken in: to read on would lose records and say nothing.
            text = f"the consumer could not read on: {type(error).__name__}: {error}".encode("utf-8", "replace")
            gate_fail(self.core, FAIL_ABORTED, text, len(text))
            raise
        finally:
            self.within = 0

    cdef object give_out(self):
        self.first_row_ns = 0
        if self.assembler is not None:
            self.records_in += self.assembler.rows
            return self.assembler.take()
        if self.elements is not None:
            self.record_bytes = 0
            self.records_in += self.elements.records
            return self.elements.view(<RowSerializer> self.serializer)
        records = self.records
        self.records = []
        self.record_bytes = 0
        self.records_in += len(records)
        return records

    cdef object take_event(self):
        """The event that came after all that waited; None while something waits, or when there is none."""
        event = None
        if not self.waiting():
            event = self.event
            self.event = None
        return event

    cdef void forget(self):
        """The gate is freed: nothing is kept that it held, and `core` is looked at no more."""
        self.core = NULL
        self.local_partitions = []
        self.shared = []
        self.readers = []
        self.records = []
        self.assembler = None
