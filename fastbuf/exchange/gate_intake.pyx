"""A gate's intake: decodes the buffers of all channels, and keeps rows or records until they are given out."""

import logging

from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_now_ns
from fastbuf.exchange.channel_reader cimport READY_BATCH, ChannelReader, SharedChannel
from fastbuf.exchange.failure cimport FAIL_ABORTED, failure_text
from fastbuf.exchange.gate_core cimport LOSS_ERROR, gate_fail, gate_set_lost
from fastbuf.exchange.input_channel cimport CHANNEL_CANCELLED, CHANNEL_LOCAL, InputChannel
from fastbuf.exchange.shared_block cimport SHARED_ABORTED, SHARED_CANCELLED, SHARED_DONE
from fastbuf.exchange.shared_reader cimport (
    MOST_LOOKS, NEWS_BROKEN, NEWS_BYTES, NEWS_EVENT, NEWS_GAP, NEWS_LOST, NEWS_NONE, News, SharedLook,
)
from fastbuf.flow.flow_control cimport FLOW_PID_RATE, flow_reads
from fastbuf.serializers.columnar cimport ColumnarSerializer
from fastbuf.serializers.element_view cimport ElementView
from fastbuf.serializers.row cimport RowSerializer
from fastbuf.serializers.serializer cimport Serializer
from fastbuf.serializers.spanning cimport SpanningReader

from fastbuf.errors import BlockError, BlockTruncated, ProtocolError, RecordTooLong, left_by, text_of
from fastbuf.exchange.events import decode_event

log = logging.getLogger(__name__)


cdef class GateIntake:
    """What an input gate has decoded and not given out; the gate sets `core`."""

    def __init__(self, Serializer serializer, config, bint lazy=False, on_error=None):
        self.serializer = serializer
        self.on_error = on_error
        self.peers = {}
        self.config = config
        self.batch_rows = config.batch_rows
        self.batch_bytes = config.batch_bytes
        self.readers = []
        self.in_place = []
        self.records = []
        self.lost = {}
        self.list_bytes = min(<Py_ssize_t> (VIEW_BYTES if lazy else LIST_BYTES), <Py_ssize_t> config.batch_bytes)
        if lazy:
            self.elements = ElementView(self.list_bytes + 2 * <Py_ssize_t> LIST_BYTES)
        if serializer.kind == "columnar":
            self.assembler = (<ColumnarSerializer> serializer).assembler()

    cdef SpanningReader fresh(self):
        cdef Py_ssize_t most = self.config.max_record_bytes
        if self.assembler is not None:
            most = max(most, <Py_ssize_t> self.core.buffers.pool.segment_size)      # an element is a chunk of many rows
        return SpanningReader(most)

    cdef SpanningReader reader(self, uint32_t index):
        while len(self.readers) <= <Py_ssize_t> index:
            self.readers.append(self.fresh())
        return <SpanningReader> self.readers[index]

    cdef int connected(self, InputChannel *c, str peer) except -1:
        """A producer has connected, perhaps in the place of one before; nothing of it has come yet."""
        self.peers[c.number] = peer
        self.lost.pop(c.number, None)
        if <Py_ssize_t> c.index < len(self.readers):
            self.readers[c.index] = self.fresh()        # its records are counted from 0
        return 0

    cdef int take_in(self, InputChannel *c, const uint8_t *data, uint32_t length) except -1:
        """Decodes all elements of one buffer."""
        cdef SpanningReader reader = self.reader(c.index)
        cdef const uint8_t *payload
        cdef Py_ssize_t n
        if self.first_row_ns == 0:
            self.first_row_ns = fb_now_ns()
            self.linger_ns = max(<int64_t> 0, c.flush_ns)
        elif c.flush_ns < self.linger_ns:
            self.linger_ns = max(<int64_t> 0, c.flush_ns)
        reader.feed(data, length)
        if self.assembler is None and self.elements is None:
            self.record_bytes += length
            return self.take_records(c, reader)
        try:
            if self.elements is not None:
                self.record_bytes += length
                self.elements.take(reader)
                return 0
            self.assembler.trust(c.kind == CHANNEL_LOCAL)
            while reader.next(&payload, &n):
                reader.ask_for_next(n)
                self.assembler.append(payload, n)
        except (BlockError, RecordTooLong) as error:
            raise type(error)(f"{self.producer(c)}: {error}") from error.__cause__
        return 0

    cdef int take_records(self, InputChannel *c, SpanningReader reader) except -1:
        cdef list records = self.records
        cdef Py_ssize_t before
        while True:
            before = len(records)
            try:
                reader.collect(self.serializer, records)
                reader.records += len(records) - before
                return 0
            except Exception as error:
                reader.records += len(records) - before
                self.refuse_record(c, reader, error)

    cdef int refuse_record(self, InputChannel *c, SpanningReader reader, error) except -1:
        """Raises an error that names the record, unless it is to be left out."""
        where = f"record {reader.records:,} of {self.producer(c)}"
        if isinstance(error, (BlockError, RecordTooLong)):
            cause = error.__cause__
            error = type(error)(f"{where}: {error}")
            error.__cause__ = cause
        else:           # an error of the user's code stays what it is
            error.add_note(f"This was raised by {where} (counted from 0, of those that came to this gate).")
        if self.on_error is None or not reader.decoding or isinstance(error, MemoryError):
            raise error
        if self.on_error != "skip":
            self.on_error(error)
        reader.records += 1
        c.counted.skipped += 1
        return 0

    cdef str producer(self, InputChannel *c):
        return f"channel {c.number} (producer {self.peers[c.number]})"

    cdef bint enough(self) noexcept:
        if self.event is not None or self.error is not None:    # later data must be given out after the event
            return True
        if self.assembler is not None:
            return self.assembler.rows >= self.batch_rows or self.assembler.nbytes >= self.batch_bytes
        # A long record that is still incomplete cannot be given out.
        return self.waiting() > 0 and (
            self.record_bytes >= self.list_bytes or self.waiting() >= self.batch_rows)

    cdef Py_ssize_t waiting(self) noexcept:
        if self.assembler is not None:
            return self.assembler.rows
        return self.elements.records if self.elements is not None else len(self.records)

    cdef int read(self, ChannelReader r, bint partial) except -1:
        """One turn of `r`: reads until there is no more data or enough to give out; 1: something came."""
        cdef const uint8_t *data
        cdef uint32_t length
        cdef News news
        cdef Py_ssize_t segment = self.core.buffers.pool.segment_size
        cdef Py_ssize_t most = READY_BATCH
        cdef int came = 0
        r.begin(partial)
        try:
            while r.holds or not self.enough():
                if self.assembler is None:
                    most = min(READY_BATCH, (self.list_bytes - self.record_bytes + segment - 1) // segment)
                news = r.next(<uint32_t> max(most, <Py_ssize_t> 1), &data, &length)
                if news == NEWS_NONE:
                    if r.refill():
                        continue
                    break
                if news == NEWS_BROKEN:
                    raise ProtocolError(
                        f"producer {(<SharedChannel> r).ring.peer} (channel {r.channel.number}) broke the protocol: "
                        "a slot of its shared queue names a segment or a length outside its memory")
                came = 1
                if news == NEWS_BYTES:
                    self.take_in(r.channel, data, length)
                    r.advance()
                elif news == NEWS_EVENT:
                    self.event = decode_event(data[:length], r.channel.number)
                    r.advance()
                elif news == NEWS_GAP:
                    self.miss(r.channel, (<const uint64_t *> data)[0])
                elif news == NEWS_LOST:
                    self.lose(r.channel, data[:length])
                    r.advance()
                else:
                    if not self.reader(r.channel.index).clean():
                        raise BlockTruncated(f"{self.producer(r.channel)} ended within a record")
                    if r.end(SHARED_DONE, b""):
                        self.in_place.remove(r)         # releases the partition or mapping that it read
                        break
        finally:
            r.leave()
        return came

    cdef int read_in_place(self, ChannelReader r, int64_t now) except -1:
        cdef InputChannel *c = r.channel
        cdef bytes text = r.gave_up()
        if text is not None and self.core.on_loss != LOSS_ERROR:
            return 0 if c.buffers.blocked else self.read_left(r, text)
        if text is not None:
            gate_fail(self.core, FAIL_ABORTED, text, len(text))
            r.end(SHARED_CANCELLED, b"")
            c.state = CHANNEL_CANCELLED
            self.in_place.remove(r)
            return 1
        return 0 if c.buffers.blocked else self.read(r, self.flush_is_due(c, now))

    cdef int read_left(self, ChannelReader r, bytes text) except -1:
        """Reads what a lost producer has left; once that is all, its channel is over."""
        cdef InputChannel *c = r.channel
        if self.read(r, True) or self.enough():
            return 1
        self.lose(c, text)
        if isinstance(r, SharedChannel) and (<SharedChannel> r).ring.lost is not None:
            r.end(SHARED_ABORTED, text)     # one that is only silent hears of it when it goes on
        else:
            r.end(SHARED_CANCELLED, b"")
        self.in_place.remove(r)
        gate_set_lost(self.core, c)
        return 1

    cdef int miss(self, InputChannel *c, uint64_t records) except -1:
        """The producer dropped so many records, of which half of the first may have come."""
        cdef SpanningReader reader = self.reader(c.index), fresh
        c.counted.records_missed += records
        if not reader.clean():
            fresh = self.fresh()
            fresh.records = reader.records
            self.readers[c.index] = fresh
        return 0

    cdef int lose(self, InputChannel *c, bytes text) except -1:
        """The producer was lost: what came of it whole was taken in, the half element behind that is dropped."""
        why = text.decode("utf-8", "replace")
        cdef bint half = not self.reader(c.index).clean()
        if half:
            self.cut += 1
            self.readers[c.index] = self.fresh()
        self.losses += 1
        self.lost[c.number] = why
        log.warning("channel %d is lost%s: %s", c.number, ", with half a record" if half else "", why)
        return 0

    cdef bint flush_is_due(self, InputChannel *c, int64_t now) noexcept:
        """Whether to read this channel's unfilled buffer too, since the producer's buffer timeout has passed.

        The clock is divided into periods of the timeout, and the first call in a period returns True; so callers that
        poll without waiting get the data too, and the reader wakes once for all channels with the same timeout.
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

    cdef int look(self, int64_t now) noexcept:
        """Whether a channel read in place has something that was not read; if not, sets when to look again."""
        cdef ChannelReader r
        cdef int64_t turn
        self.flush_due_ns = -1
        for r in self.in_place:
            if not r.channel.buffers.blocked:
                if r.has_more():
                    return 1
                if r.channel.flush_ns > 0:
                    turn = (now // r.channel.flush_ns + 1) * r.channel.flush_ns
                    if self.flush_due_ns < 0 or turn < self.flush_due_ns:
                        self.flush_due_ns = turn
        return 0

    cdef bint will_give(self) noexcept:
        """Whether rows wait, or a buffer timeout will bring what a writer read in place has begun."""
        cdef ChannelReader r
        for r in self.in_place:
            if r.channel.flush_ns > 0 and not r.channel.buffers.blocked and r.has_more():
                return True
        return self.waiting() > 0

    cdef int hints(self, SharedLook *looks) noexcept:
        """Places in shared memory to poll for new data; -> how many, of which the first MOST_LOOKS are in `looks`."""
        cdef ChannelReader r
        cdef int n = 0
        for r in self.in_place:
            if not r.channel.buffers.blocked:
                n += r.hint(&looks[n] if n < MOST_LOOKS else NULL)
        return n

    cdef int drain(self, int64_t now) except -1:
        """Reads all channels until there is enough to give out; now: for buffer timeouts; 1: something came."""
        cdef ChannelReader r
        cdef list readers = list(self.in_place)         # a copy, since channels that end are removed from the list
        cdef uint32_t k
        cdef uint32_t n = <uint32_t> len(readers)
        cdef uint64_t stored = 0
        cdef int came
        self.within = <unsigned long> PyThread_get_thread_ident()
        self.flush_due_ns = -1
        try:
            came = self.read(self.wire, False)
            if self.core.flow.kind == FLOW_PID_RATE:
                flow_reads(&self.core.flow, came, self.records_in, fb_now_ns())
            for k in range(n):
                r = <ChannelReader> readers[(self.turn + k) % n]
                came |= self.read_in_place(r, now)
                stored += r.stored()
            if stored != self.stored:       # a blocking producer still makes progress
                self.stored = stored
                came = 1
            self.turn += 1
            return came
        except BaseException as error:
            # Some buffers were taken and not decoded: reading on would silently lose records.
            self.fail(error)
            if not isinstance(error, Exception):
                raise
            self.error = error
            if not self.waiting() and self.event is None:
                self.raise_error()
            return 1            # what was decoded is given out first
        finally:
            self.within = 0

    cdef int fail(self, error) except -1:
        words = "; ".join([left_by("it", type(error), error), *getattr(error, "__notes__", ())])
        cdef bytes text = failure_text(f"the consumer failed while reading: {words}")
        gate_fail(self.core, FAIL_ABORTED, text, len(text))
        return 0

    cdef int raise_error(self) except -1:
        """Raises the error that was kept until everything decoded before it was given out, once."""
        error = self.error
        self.error = None
        if isinstance(error, (StopIteration, StopAsyncIteration)):      # a loop would take it for the end
            raise RuntimeError(f"code of a record raised {text_of(type(error), error)}") from error
        if error is not None:
            raise error
        return 0

    cdef object give_out(self):
        try:
            return self.taken()
        except BaseException as error:
            self.fail(error)        # its rows may be gone
            raise

    cdef object taken(self):
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
        """Takes the event, if there is one and all records before it were given out."""
        event = None
        if not self.waiting():
            event = self.event
            self.event = None
        return event

    cdef void forget(self):
        """The gate is freed: drops all references, and `core` is not used any more."""
        self.core = NULL
        self.wire = None
        self.in_place = []
        self.readers = []
        self.records = []
        self.error = None
        self.assembler = None
