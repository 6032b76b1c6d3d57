"""The TCP transport: connects subpartitions to gates of other processes and has the I/O thread move the bytes."""

import socket
import sys
import threading

from fastbuf.exchange.clock cimport seconds_ns
from fastbuf.exchange.failure cimport FAIL_PEER_LOST
from fastbuf.exchange.gate_core cimport gate_disconnect, gate_fail, gate_open_channel
from fastbuf.exchange.input_channel cimport InputChannel
from fastbuf.exchange.input_gate cimport InputGate
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport sub_forget_drainer
from fastbuf.exchange.result_subpartition cimport sub_close
from fastbuf.transports.tcp_loop cimport COMMAND_ADD, COMMAND_LET_GO, IoThread, loop_mark
from fastbuf.transports.tcp_state cimport (
    ROLE_RECEIVER,
    ROLE_SENDER,
    Connection,
    connection_free,
    connection_new,
)

from fastbuf.errors import ConfigError, ExchangeClosed, PeerLost, SequenceError
from fastbuf.exchange.connection import register_transport
from fastbuf.transports import handshake as hs
from fastbuf.transports.listener import Listener

if sys.byteorder != "little":
    raise ConfigError("fastbuf's wire is little-endian and this machine is not")


cdef class TcpTransport:
    """One I/O thread and, once :meth:`listen` is called, one listener."""

    cdef IoThread io
    cdef object environment
    cdef object listener
    cdef object lock
    cdef bint closed
    cdef public object offers

    def __init__(self, environment):
        self.environment = environment
        # Who knows a better way than this connection, or None:
        #   make(partition, index, target) -> bytes       a producer's offer; empty: none.  The thread that connects
        #   answered(partition, index, answer)            to an offer that was made.  The same thread
        #   take(gate, hello, offer) -> bytes             the consumer's answer; empty: no.  The listener's thread
        self.offers = None
        self.lock = threading.RLock()
        self.io = IoThread()

    def listen(self, host, ports):
        with self.lock:
            if self.listener is not None:
                raise ConfigError(f"this environment listens on {self.listener.address} already")
            self.listener = Listener(host, ports, self.environment.gate, self._admit)
            return self.listener.address

    def register_gate(self, gate):
        """Gates are found through the environment: nothing to do."""

    # ---- a producer connects to us (listener's thread)

    def _admit(self, sock, hello, InputGate gate, peer, offer):
        cdef InputChannel *channel
        cdef Connection *c
        cdef bytes name = peer.encode()
        with self.lock:
            if self.closed or gate.closed:
                raise PeerLost("the consumer has ended")
            channel = gate_open_channel(gate.core, hello.channel, NULL)
            if channel == NULL:
                raise SequenceError(f"channel {hello.channel} is connected already")
            try:
                answer = self.offers.take(gate, hello, offer) if offer and self.offers is not None else b""
                sock.send(hs.pack_verdict(hs.WELCOME, answer=answer))
                size = gate.environment.pool.segment_size
                c = connection_new(sock.fileno(), ROLE_RECEIVER, hello.channel, size, name)
                if c == NULL:
                    raise MemoryError
                sock.detach()
            except Exception as error:      # of whatever kind: a channel that was opened must be heard of
                text = f"producer {peer} (channel {hello.channel}) was lost as it connected: {error}".encode()
                gate_disconnect(gate.core, channel)
                gate_fail(gate.core, FAIL_PEER_LOST, text, len(text))
                raise PeerLost(text.decode()) from error
            c.loop = self.io.loop
            c.gate = gate.core
            c.channel = channel
            # The I/O thread itself connects the channel, so that nobody marks a connection it does not have yet.
            self.io.command(COMMAND_ADD, c)

    # ---- we connect to a consumer

    def connect(self, ResultPartition partition, int index, target, channel):
        """Blocks until the consumer has proved the secret and believes us; `connect_timeout_s` at most."""
        host, port, gate_id = target
        where = f"consumer {host}:{port}"
        offer = self.offers.make(partition, index, target) if self.offers is not None else b""
        hello = hs.Hello(
            gate_id=gate_id,
            channel=partition.channel,
            epoch=channel["epoch"],
            fingerprint=channel["fingerprint"],
            segment_size=partition.segment_size,
            nonce=hs.fresh_nonce(),
            offer_bytes=len(offer),
        )
        try:
            sock = socket.create_connection((host, port), timeout=partition.config.connect_timeout_s)
        except OSError as error:
            # Nobody listens there any more: the consumer had enough before this producer began.
            if channel["loss_is_cancel"] and isinstance(error, (ConnectionRefusedError, ConnectionResetError)):
                sub_close(&partition.subs[index], True)
                return
            raise PeerLost(f"{where} cannot be reached: {error}") from error
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                answer = hs.greet(sock, hello, channel["secret"], where, offer)
            except PeerLost as error:
                if not channel["loss_is_cancel"] or isinstance(error.__cause__, TimeoutError):
                    raise
                sub_close(&partition.subs[index], True)
                return
            if offer:
                self.offers.answered(partition, index, answer)
            sock.setblocking(False)
            self._hand_over(sock, partition, index, target, channel["loss_is_cancel"])
        finally:
            sock.close()

    def _hand_over(self, sock, ResultPartition partition, int index, target, bint loss_is_cancel):
        """Give a greeted socket to the I/O thread; on an error it stays the caller's."""
        cdef Connection *c
        host, port, gate_id = target
        cdef bytes name = f"{host}:{port}".encode()
        cdef bint checksum = partition.config.checksum
        cdef double timeout = partition.config.buffer_timeout_s
        # Under the lock that let_go_partition and close take: the partition may have been ended (the environment was
        # closed by another thread) while we talked, and then nothing of the transport may point to it any more.
        with self.lock:
            partition.check()
            if self.closed:
                raise ExchangeClosed("the environment was closed while it connected")
            c = connection_new(sock.fileno(), ROLE_SENDER, partition.channel, partition.segment_size, name)
            if c == NULL:
                raise MemoryError
            c.loop = self.io.loop
            c.checksum = checksum
            c.loss_is_cancel = loss_is_cancel
            c.flush_interval_ns = -1 if timeout < 0 else seconds_ns(timeout)
            c.writer_failure = &partition.core.failure
            c.abort_asked = &partition.core.abort_asked
            c.sub = &partition.subs[index]
            partition.subs[index].notify = loop_mark
            partition.subs[index].notify_context = c
            try:
                self.io.command(COMMAND_ADD, c)
            except BaseException:       # it has not taken it
                sub_forget_drainer(&partition.subs[index])
                c.fd = -1
                connection_free(c)
                raise
            sock.detach()
            partition.set_transport(index, "tcp", f"{host}:{port} gate {gate_id}")

    # ---- letting go

    def let_go_gate(self, InputGate gate):
        with self.lock:
            if not self.closed:
                self.io.command(COMMAND_LET_GO, gate.core)

    def let_go_partition(self, ResultPartition partition):
        with self.lock:
            if not self.closed:
                self.io.command(COMMAND_LET_GO, partition.abort_key())

    def close(self):
        """Everything was let go of before: end the listener, then the I/O thread."""
        if self.closed:
            return
        if self.listener is not None:
            self.listener.close()
        with self.lock:
            self.closed = True
            self.io.stop()


register_transport("tcp", TcpTransport)
