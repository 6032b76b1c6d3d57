"""One end of a wire under watermarks, as Python has it, and its thread (map and owners: ``watermark_wire.pxd``)."""

import hmac
import threading

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strlen

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_init, fb_u32_load_acquire
from fastbuf._native.threads cimport pthread_mutex_lock, pthread_mutex_unlock
from fastbuf.exchange.gate_core cimport gate_connect, gate_open_channel
from fastbuf.exchange.input_gate cimport InputGate
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport sub_forget_drainer
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool
from fastbuf.transports.messages cimport FRAME_ABORT, FRAME_JOIN
from fastbuf.transports.watermark_wire cimport (
    LAST_WORDS_NS,
    PASS_JOIN,
    PassResult,
    WireStream,
    wire_announce,
    wire_cancel,
    wire_close,
    wire_free,
    wire_hang_up,
    wire_let_go_gate,
    wire_new,
    wire_notify,
    wire_poke,
    wire_release_writer,
    wire_tend,
    wire_word,
    wire_work,
)

from fastbuf.errors import AuthenticationError, ExchangeClosed, ExchangeError, ResourceError, SequenceError
from fastbuf.exchange.named_thread import start_thread
from fastbuf.transports import handshake as hs


cdef class WatermarkEnd:
    """One end of a connection; made by the watermark transport, with the handshake behind it.

    Parameters
    ----------
    transport : WatermarkTransport
    receives : bool
        Whether gates are here, or partitions.
    secret : bytes
        That it was proved with: the gates of channels that join have the same.
    peer : str
        For messages.
    """

    def __cinit__(self, transport, bint receives, secret, peer):
        cdef NetworkBufferPool pool = transport.pool
        cdef bytes name = peer.encode("utf-8", "replace")[:sizeof(self.end.peer) - 1]
        self.end = wire_new(pool.core.segment_size, receives)
        if self.end == NULL:
            raise ResourceError("no memory, or no descriptor, for a wire")
        memcpy(self.end.peer, <const char *> name, len(name))

    def __init__(self, transport, receives, secret, peer):
        self.transport = transport
        self.secret = secret
        self.peer = peer

    def __dealloc__(self):
        if self.end != NULL:
            wire_free(self.end)

    def start(self, sock):
        """The first channel is there: frames may come and go on this socket, which is this end's from here on."""
        sock.setblocking(False)
        self.end.fd = sock.detach()
        # A daemon: an end that was forgotten with its environment is ended by that one's finalizer, which joins it.
        self.thread = start_thread(self._run, "fastbuf-watermark")

    def _run(self):
        cdef PassResult result = PASS_JOIN
        while result == PASS_JOIN:
            with nogil:
                result = wire_work(self.end)
            if result == PASS_JOIN:
                self._join()
        wire_hang_up(self.end)

    # ---- channels

    cdef WireStream *_stream(self, uint32_t number) except NULL:
        cdef WireStream *s = <WireStream *> calloc(1, sizeof(WireStream))
        if s == NULL:
            raise MemoryError
        s.end = self.end
        s.id = number
        fb_u32_init(&s.announced, 1)
        fb_u32_init(&s.cancel_asked, 0)
        return s

    cdef int _add(self, WireStream *s) except -1:
        pthread_mutex_lock(&self.end.lock)
        if self.end.broken:
            pthread_mutex_unlock(&self.end.lock)
            free(s.word)
            free(s)
            raise ExchangeClosed(f"the wire to {self.peer} has ended")
        s.next = self.end.streams
        self.end.streams = s
        if s.sub != NULL:
            s.sub.notify = wire_notify
            s.sub.notify_context = s
        if s.gate != NULL:
            gate_connect(s.gate, s.channel, s, wire_announce, wire_cancel)
        pthread_mutex_unlock(&self.end.lock)
        wire_poke(self.end)
        return 0

    def add_gate(self, InputGate gate not None, hello, unsigned int stream):
        """The channel of a producer that has said `hello` comes here.

        Raises
        ------
        SequenceError
            It is there already, or the gate has ended.
        """
        cdef WireStream *s = self._stream(stream)
        cdef unsigned int number = hello.channel
        # One that was freed is found by its number until the environment has taken it off its list.  From here on the
        # GIL is kept till it is among the streams, where whoever closes the gate finds it.
        if not gate.closed:
            s.channel = gate_open_channel(gate.core, number, NULL, hello.flush_ns)
        if s.channel == NULL:
            free(s)
            raise SequenceError(f"gate {gate.gate_id}: channel {number} is there already, or the gate has ended")
        s.gate = gate.core
        try:
            self._add(s)
        except ExchangeClosed:
            gate.lose(f"producer {self.peer} (channel {number}) was lost as it connected")
            raise

    def add_partition(self, ResultPartition partition not None, int index, hello, bint joins):
        """Subpartition `index` goes to the gate that `hello` names; `joins`: the handshake was another channel's."""
        cdef WireStream *s = self._stream(self.streams)
        cdef bytes message = hello(self.streams)
        self.streams += 1
        s.flush_interval_ns = partition.flush_ns
        s.checksum = partition.config.checksum
        s.loss_is_cancel = partition.credentials["loss_is_cancel"]
        s.failure = &partition.core.failure
        s.abort_asked = &partition.core.abort_asked
        s.sub = &partition.subs[index]
        if joins:
            wire_word(s, FRAME_JOIN, <const char *> message, len(message))
        if partition.closed:            # since: from here on the GIL is kept till it is among the streams
            free(s.word)
            free(s)
            raise ExchangeClosed(f"result partition {partition.channel} was closed while it connected")
        partition.notified.append(self)         # it is notified as long as the partition may
        self._add(s)

    def _join(self):
        """The thread: a channel joins by a JOIN, which is in `text`."""
        cdef bytes message = (<char *> self.end.text)[:self.end.frame.length]
        cdef uint32_t number = self.end.frame.stream
        cdef WireStream *s
        cdef bytes why
        try:
            hello = hs.Hello.unpack(message)
            gate = self.transport.find_gate(hello.gate_id)
            if gate is None:
                raise ExchangeError(f"there is no gate {hello.gate_id} (any more)")
            if not hmac.compare_digest(gate.secret, self.secret):
                raise AuthenticationError(f"gate {hello.gate_id} has another secret than this wire was proved with")
            if hello.epoch != gate.epoch or hello.fingerprint != gate.serializer.fingerprint:
                raise SequenceError(f"channel {hello.channel} is of another run or schema than gate {hello.gate_id}")
            self.add_gate(gate, hello, number)
        except Exception as error:              # of whatever kind: it is told, and the other channels go on
            why = str(error).encode("utf-8", "replace")
            s = self._stream(number)
            s.over = True
            wire_word(s, FRAME_ABORT, <const char *> why, len(why))
            self._add(s)

    # ---- ending

    def let_go_gate(self, InputGate gate):
        """The gate is about to be freed: nothing of the wire points to it afterwards."""
        cdef WireStream *s
        pthread_mutex_lock(&self.end.lock)
        s = self.end.streams
        while s != NULL:
            if s.gate != NULL and s.gate == gate.core:
                wire_tend(self.end, s)
                wire_let_go_gate(self.end, s)
            s = s.next
        pthread_mutex_unlock(&self.end.lock)
        wire_poke(self.end)

    def let_go_partition(self, ResultPartition partition):
        """The partition is about to be freed: nothing of the wire points to it afterwards."""
        cdef WireStream *s
        cdef const char *text = b"the producer was let go without its end of partition"
        pthread_mutex_lock(&self.end.lock)
        s = self.end.streams
        while s != NULL:
            if s.sub != NULL and s.abort_asked == &partition.core.abort_asked:
                if fb_u32_load_acquire(s.abort_asked):
                    text = s.failure.text
                wire_word(s, FRAME_ABORT, text, strlen(text))
                s.over = True
                sub_forget_drainer(s.sub)
                wire_release_writer(s, True)
            if s.abort_asked == &partition.core.abort_asked:
                s.abort_asked = NULL
                s.failure = NULL
            s = s.next
        pthread_mutex_unlock(&self.end.lock)
        wire_poke(self.end)

    def ended(self):
        """Whether the connection is no more, and nothing points to gates and partitions."""
        cdef bint broken
        pthread_mutex_lock(&self.end.lock)      # not within the pass that lets go of them
        broken = self.end.broken
        pthread_mutex_unlock(&self.end.lock)
        return broken

    def stats(self):
        """Bytes sent, most bytes queued at once, the marks, and seconds that this end did not read for want of memory.
        """
        cdef int64_t stopped
        pthread_mutex_lock(&self.end.lock)
        stopped = self.end.stopped_ns
        if self.end.stopped_since:
            stopped += fb_now_ns() - self.end.stopped_since
        out = {"bytes": self.end.moved, "peak_bytes": self.end.peak, "stopped_s": stopped / 1e9,
               "high": self.end.mark.high, "low": self.end.mark.low}
        pthread_mutex_unlock(&self.end.lock)
        return out

    def close(self):
        """Say what is still to be said, and end; gates and partitions have let go of it. Idempotent."""
        thread, self.thread = self.thread, None
        if thread is not None:
            pthread_mutex_lock(&self.end.lock)
            self.end.stop_by = fb_now_ns() + LAST_WORDS_NS
            pthread_mutex_unlock(&self.end.lock)
            wire_poke(self.end)
            if thread is threading.current_thread():    # the collector ended the environment there
                return
            thread.join()
            # Nobody pokes any more: gates and partitions were let go of under the lock.
            wire_close(self.end)
