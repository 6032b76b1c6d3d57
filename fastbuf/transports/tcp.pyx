"""The TCP transport: connects subpartitions to gates of other processes; the I/O thread moves the bytes.

All channels between two environments share a connection, in both directions.  The first channel opens it and proves its
secret on it; the others join, each with a proof of its own.
"""

import sys
import threading
import weakref

cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free

from fastbuf._native.atomics cimport fb_now_ns, fb_u32_store_relaxed
from fastbuf.exchange.clock cimport seconds_ns
from fastbuf.exchange.failure cimport FAIL_PEER_LOST
from fastbuf.exchange.gate_core cimport gate_disconnect, gate_lose
from fastbuf.exchange.input_channel cimport CHANNEL_WIRE, InputChannel
from fastbuf.exchange.input_gate cimport InputGate
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport HELD_LINK, sub_close, sub_forget_drainer
from fastbuf.flow.flow_control cimport Flow
from fastbuf.memory.network_buffer_pool cimport NetworkBufferPool
from fastbuf.transports.tcp_guest cimport loop_mark_now
from fastbuf.transports.tcp_loop cimport *
from fastbuf.transports.tcp_state cimport *
from fastbuf.transports.tcp_thread cimport IoThread

from fastbuf.config import FLOW_CONTROLS
from fastbuf.errors import AuthenticationError, ConfigError, ExchangeClosed, PeerLost
from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.connection import register_transport
from fastbuf.transports import handshake as hs
from fastbuf.transports.addresses import connect, host_of
from fastbuf.transports.listener import Listener
from fastbuf.transports.socket_options import tune

if sys.byteorder != "little":
    raise ConfigError("fastbuf's wire is little-endian and this machine is not")


ROUTES = 1024       #: addresses remembered
#: How long a channel that was told to use the peer's connection waits for it before it dials itself; and for how long
#: after dialling an end tells its peer so, which may have been about to dial.
CROSSING_S = 0.25


class _Route:
    """The connection to one address, if any; a thread that opens it holds `lock`.

    Two environments that dial each other at the same moment must end up with one connection.  The one with the lower
    address goes on with its own connection, and tells the other to use it (`TcpTransport._crosses`).
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.serial = 0
        self.borrowed = False       # the peer opened it, and said that it listens at this address
        self.dialling = False       # we are dialling, and have told the peer where we listen
        self.dialled = 0.0          # when we last dialled; monotonic
        self.offered = 0            # connection opened by the peer while a thread had the lock
        self.came = threading.Event()

    def offer(self, serial):
        """A connection opened by the peer: used from now on, or by a dialling thread if the peer tells it to."""
        if not self.lock.acquire(blocking=False):
            self.offered = serial
            self.came.set()
            return
        try:
            if self.serial == 0:
                self.serial, self.borrowed = serial, True
        finally:
            self.lock.release()

    def take(self, timeout):
        """Use the connection that was offered, or is offered before the timeout.  The caller holds the lock."""
        if self.came.wait(timeout):
            self.came.clear()
            self.serial, self.offered, self.borrowed = self.offered, 0, True


class _Gone(Exception):
    """The connection was closed, usually after its last channel, before another could join."""


@cython.auto_pickle(False)
cdef class TcpTransport:
    """One I/O thread, and one listener once :meth:`listen` was called."""

    cdef IoThread io
    cdef object environment     # weak: threads must not keep an unused environment alive
    cdef NetworkBufferPool pool
    cdef object listener
    cdef object lock
    cdef dict routes
    cdef object tls             # TlsEnds, or None
    cdef bint closed

    def __init__(self, environment):
        self.environment = weakref.ref(environment)
        self.pool = environment.pool
        self.tls = None
        if environment.tls is not None:
            from fastbuf.transports.tls import TlsEnds

            self.tls = TlsEnds(environment.tls)
        self.lock = threading.RLock()
        self.routes = {}
        self.io = IoThread()

    def listen(self, host, ports):
        with self.lock:
            if self.listener is not None:
                raise ConfigError(f"this environment listens on {self.listener.address} already")
            self.listener = Listener(host, ports, self, self.tls.server if self.tls is not None else None)
            try:
                self.listener.start()
            except BaseException:       # so that it can be tried again
                self.listener.close()
                self.listener = None
                raise
            return self.listener.address

    # ---- a producer connects to us (in the listener's thread; see listener.Desk)

    def find_gate(self, gate_id):
        environment = self.environment()
        return environment.gate(gate_id) if environment is not None else None

    def messages_fd(self):
        return self.io.open_inbox()

    def messages(self):
        return self.io.take_inbox()

    def reply(self, connection, stream, message, last):
        self._say(connection, stream, message, last)

    def admit(self, sock, applicant):
        cdef Connection *c = NULL
        cdef Command k
        cdef InputGate gate = applicant.gate
        cdef bytes name = applicant.peer.encode()
        command_init(&k, COMMAND_ADD)
        if self._crosses(sock, applicant):
            raise hs.Crossed
        with self.lock:
            k.channel = self._open_channel(gate, applicant.hello, applicant.peer)
            k.ping_interval_ns = seconds_ns(gate.config.ping_interval_s)
            try:
                welcome = applicant.welcome()
                c = connection_new(-1, False, gate.core.flow.kind, self.pool.core.segment_size, name)
                k.stream = stream_new(ROLE_RECEIVER, applicant.hello.channel)
                if c == NULL or k.stream == NULL:
                    raise MemoryError
                sock.send(welcome)
                if self.tls is not None:
                    sock = self.tls.relay.add(sock)
                    applicant.taken = True
                c.fd = sock.fileno()
                k.connection = c
                k.stream.gate = gate.core
                k.stream.channel = k.channel
                # The I/O thread itself connects the channel, so that no thread marks a stream that the loop does not
                # have yet.
                self.io.command(&k)
                sock.detach()
            except Exception as error:      # any error: it must be reported for a channel that was opened
                if applicant.taken:
                    sock.close()
                if c != NULL:
                    c.fd = -1
                    connection_free(c)
                if k.stream != NULL:
                    stream_free(k.stream)
                self._lost_as_it_connected(gate, k.channel, applicant, error)
            self._borrow(applicant, k.serial)

    def admit_stream(self, connection, applicant):
        cdef Command k
        cdef bytes welcome
        cdef InputGate gate = applicant.gate
        command_init(&k, COMMAND_MESSAGE)
        with self.lock:
            k.channel = self._open_channel(gate, applicant.hello, applicant.peer)
            k.ping_interval_ns = seconds_ns(gate.config.ping_interval_s)
            k.gate = gate.core
            k.serial = connection
            k.id = applicant.stream
            try:
                welcome = applicant.welcome()
                k.message = message_new(<char *> welcome, len(welcome))
                if k.message == NULL:
                    raise MemoryError
                self.io.command(&k)
                if k.result != 0:
                    raise PeerLost("the connection was closed")
            except Exception as error:
                free(k.message)
                self._lost_as_it_connected(gate, k.channel, applicant, error)

    cdef InputChannel *_open_channel(self, InputGate gate, hello, str peer) except NULL:
        cdef InputChannel *channel
        if self.closed or gate.closed:
            raise PeerLost("the consumer has ended")
        channel = gate.open_channel(hello.channel, CHANNEL_WIRE, hello.flush_ns, peer)
        gate.core.driver = &self.io.loop.driver
        return channel

    cdef int _lost_as_it_connected(self, InputGate gate, InputChannel *channel, applicant, error) except -1:
        what = f"producer {applicant.peer} (channel {applicant.hello.channel}) was lost as it connected: {error}"
        text = what.encode()
        gate_disconnect(gate.core, channel)
        gate_lose(gate.core, channel, FAIL_PEER_LOST, text, len(text))
        raise PeerLost(what) from error

    # ---- we connect to a consumer

    def connect(self, ResultPartition partition, int index, target, credentials):
        """Waits until both ends have proved the secret; `connect_timeout_s` at most."""
        where = f"consumer {target[0]}:{target[1]}"
        deadline = monotonic() + partition.config.connect_timeout_s
        alone = False
        try:
            while True:
                route = self._route(target[:2], partition.config.flow_control)
                if not route.lock.acquire(timeout=max(0.0, deadline - monotonic())):
                    raise PeerLost(f"{where} cannot be reached: another channel is still trying to connect")
                try:
                    if route.serial == 0:
                        route.take(0)
                    if route.serial == 0:
                        try:
                            route.serial = hs.patiently(
                                lambda: self._dial(partition, index, target, credentials, where, route, alone),
                                deadline, partition.check)
                            route.borrowed = False
                            route.dialled = monotonic()
                            return
                        except hs.Crossed as error:
                            if alone:
                                raise PeerLost(f"{where} waits for what it dials itself") from error
                            alone = True        # if the peer's connection does not come after all
                            route.dialling = False
                            route.take(max(0.0, min(CROSSING_S, deadline - monotonic())))
                    serial, borrowed = route.serial, route.borrowed
                finally:
                    route.dialling = False
                    route.lock.release()
                if serial == 0:
                    continue
                try:
                    hs.patiently(lambda: self._join(serial, partition, index, target, credentials, where),
                                 deadline, partition.check)
                    return
                except _Gone:
                    partition.check()       # the consumer may have sent the reason
                except (AuthenticationError, PeerLost):
                    if not borrowed:
                        raise
                    # The peer that dialled us may have claimed another's address: dial to see who is there.
                with route.lock:
                    if route.serial == serial:
                        route.serial = 0
        except PeerLost as error:
            # Nobody listens there any more, or the gate is gone: the consumer ended early, before this producer began.
            if not credentials.loss_is_cancel or not self._had_enough(error):
                raise
            partition.unreached[index] = str(error)     # to be told to a consumer that is still running
            sub_close(&partition.subs[index], True)

    @staticmethod
    def _had_enough(error):
        cause = error.__cause__
        if getattr(error, "greeted", False):
            return not isinstance(cause, TimeoutError)
        return isinstance(cause, (ConnectionRefusedError, ConnectionResetError))

    def _route(self, address, flow_control):
        """Only channels of the same flow control share a connection: one that stops it stops no others."""
        with self.lock:
            if len(self.routes) >= ROUTES:      # after a long life; addresses still in use are dialled again
                self.routes = {key: route for key, route in self.routes.items() if route.lock.locked()}
            return self.routes.setdefault((*address, flow_control), _Route())

    def _claim(self, sock):
        """The port where we listen, so that the peer's channels to us can use this connection too; 0: none."""
        host = host_of(sock.getsockname())
        if self.tls is not None or self.listener is None or self.listener.address[0] not in (host, "0.0.0.0", "::"):
            return 0
        return self.listener.address[1]

    def _borrow(self, applicant, uint64_t serial):
        """Offer a peer's connection to our channels to the address it claims.  Not with TLS: no name was checked."""
        if applicant.hello.port == 0 or self.tls is not None:
            return
        self._route((applicant.peer.rpartition(":")[0], applicant.hello.port), applicant.hello.flow_control).offer(
            serial)

    def _crosses(self, sock, applicant):
        """Whether we are dialling the peer that dials us, and both must use our connection."""
        theirs = (applicant.peer.rpartition(":")[0], applicant.hello.port)
        route = self.routes.get((*theirs, applicant.hello.flow_control))
        if applicant.hello.port == 0 or route is None:
            return False
        if not route.dialling:
            return route.serial != 0 and not route.borrowed and monotonic() - route.dialled < CROSSING_S
        # Both ends see the same two addresses, so exactly one says yes; where they see different ones, both or neither
        # may.
        return (host_of(sock.getsockname()), self.listener.address[1]) < theirs

    def _dial(self, ResultPartition partition, int index, target, credentials, where, route, alone):
        """Opens the connection for this channel; returns its serial.  alone: other channels may not use it."""
        try:
            sock = connect(target[0], target[1], partition.config.connect_timeout_s)
        except OSError as error:
            raise PeerLost(f"{where} cannot be reached: {error}") from error
        try:
            tune(sock)
            if self.tls is not None:
                sock = self.tls.shake(sock, target[0], where)
            try:
                port = 0 if alone else self._claim(sock)
                route.dialling = port != 0
                if port and route.came.is_set():
                    raise hs.Crossed(f"{where} has just dialled us")
                hello = hs.Hello.of(partition, target[2], credentials, port=port)
                hs.greet(sock, hello, credentials.secret, where)
            except PeerLost as error:
                if self.tls is not None and self.tls.refused(error.__cause__):
                    raise AuthenticationError(f"{where} refused this host's certificate: {error.__cause__}") from error
                error.greeted = True
                raise
            if self.tls is not None:
                sock = self.tls.relay.add(sock)
            sock.setblocking(False)
            return self._hand_over(sock, partition, index, target, credentials)
        finally:
            sock.close()

    cdef Stream *_stream(self, ResultPartition partition, int index, credentials) except NULL:
        # The caller holds the lock, which let_go_partition and close take.  The partition may have been closed during
        # the handshake by another thread that closed the environment; then the transport must keep no pointer to it.
        cdef Stream *s = NULL
        cdef bint checksum = partition.config.checksum
        cdef bint loss_is_cancel = credentials.loss_is_cancel
        partition.check()
        if self.closed:
            raise ExchangeClosed("the environment was closed while it connected")
        s = stream_new(ROLE_SENDER, partition.channel)
        if s == NULL:
            raise MemoryError
        s.checksum = checksum
        s.loss_is_cancel = loss_is_cancel
        s.flush_interval_ns = partition.flush_ns
        s.writer_failure = &partition.core.failure
        s.abort_asked = &partition.core.abort_asked
        s.sub = &partition.subs[index]
        fb_u32_store_relaxed(&s.sub.held, HELD_LINK)
        return s

    cdef void _attach(self, ResultPartition partition, int index, Stream *s, target):
        host, port, gate_id = target
        partition.subs[index].notify = loop_mark_now
        partition.subs[index].notify_context = s
        partition.core.driver = &self.io.loop.driver
        partition.set_transport(index, "tcp", f"{host}:{port} gate {gate_id}")

    def _hand_over(self, sock, ResultPartition partition, int index, target, credentials):
        """Give a socket to the I/O thread after the handshake; on an error the caller keeps the socket."""
        cdef Connection *c
        cdef Command k
        cdef bytes name = f"{target[0]}:{target[1]}".encode()
        cdef Flow flow = <Flow> <int> FLOW_CONTROLS.index(partition.config.flow_control)
        command_init(&k, COMMAND_ADD)
        k.ping_interval_ns = seconds_ns(partition.config.ping_interval_s)
        with self.lock:
            k.stream = self._stream(partition, index, credentials)
            c = connection_new(sock.fileno(), True, flow, self.pool.core.segment_size, name)
            if c == NULL:
                stream_free(k.stream)
                raise MemoryError
            k.connection = c
            k.stream.loop = self.io.loop
            self._attach(partition, index, k.stream, target)
            try:
                self.io.command(&k)
            except BaseException:       # the I/O thread has not taken it
                sub_forget_drainer(&partition.subs[index])
                c.fd = -1
                connection_free(c)
                stream_free(k.stream)
                raise
            sock.detach()
            return k.serial

    def _say(self, uint64_t serial, unsigned int stream, bytes message, bint last=False):
        """Send a handshake message through the I/O thread; it is dropped if the connection is gone."""
        cdef Command k
        command_init(&k, COMMAND_REFUSE if last else COMMAND_MESSAGE)
        k.serial = serial
        k.id = stream
        if message:
            k.message = message_new(<char *> message, len(message))
            if k.message == NULL:
                raise MemoryError
        with self.lock:
            try:
                if self.closed:
                    raise ExchangeClosed("the environment was closed while it connected")
                self.io.command(&k)
            except BaseException:
                free(k.message)
                raise
        if k.result != 0:
            free(k.message)

    def _join(self, uint64_t serial, ResultPartition partition, int index, target, credentials, where):
        """Add a channel to an existing connection; raises _Gone if it was closed."""
        cdef Command k
        cdef Stream *s = NULL
        cdef unsigned int stream = 0
        cdef int64_t deadline = fb_now_ns() + seconds_ns(partition.config.connect_timeout_s)
        command_init(&k, COMMAND_JOIN)
        k.serial = serial
        k.ping_interval_ns = seconds_ns(partition.config.ping_interval_s)
        with self.lock:
            s = self._stream(partition, index, credentials)
            k.stream = s
            try:
                self.io.command(&k)
            except BaseException:
                stream_free(s)
                raise
            if k.result != 0:
                stream_free(s)
                raise _Gone
            stream = s.id
            command_init(&k, COMMAND_LEAVE)
            k.stream = s
            greeting = hs.Greeting(hs.Hello.of(partition, target[2], credentials, stream), credentials.secret, where)
            try:
                # with the lock, so that stream numbers are sent in order
                self._say(serial, stream, greeting.message)
            except BaseException:
                self.io.command(&k)
                raise
        try:
            challenge = self._hear(s, deadline, where, hs.CHALLENGE_BYTES)
            if not challenge:
                raise _Gone
            self._say(serial, stream, greeting.prove(challenge))
            verdict = self._hear(s, deadline, where, hs.VERDICT_HEAD_BYTES)
            if not verdict:
                raise PeerLost(f"{where} closed the connection during the handshake")
            head = verdict[:hs.VERDICT_HEAD_BYTES]
            if len(verdict) != len(head) + hs.verdict_length(head, where):
                raise PeerLost(f"{where} sent an incomplete verdict")
            greeting.conclude(verdict)
            with self.lock:
                partition.check()
                self._attach(partition, index, s, target)
                k.kind = COMMAND_OPEN
        except PeerLost as error:
            error.greeted = True
            raise
        finally:
            with self.lock:
                if not self.closed:         # close has freed it otherwise
                    self.io.command(&k)

    cdef bytes _hear(self, Stream *s, int64_t deadline, where, Py_ssize_t least):
        # An empty message means: the connection is closed.
        cdef bytes message = self.io.wait_message(s, deadline)
        if message is None:
            raise PeerLost(f"{where} did not answer the handshake in time") from TimeoutError()
        if 0 < len(message) < least:
            raise PeerLost(f"{where} sent an incomplete handshake message")
        return message

    # ---- detaching

    def let_go_gate(self, InputGate gate):
        self._let_go(gate.core)

    def let_go_partition(self, ResultPartition partition):
        self._let_go(partition.abort_key())

    cdef int _let_go(self, void *whose) except -1:
        cdef Command k
        command_init(&k, COMMAND_LET_GO)
        k.argument = whose
        with self.lock:
            if not self.closed:
                self.io.command(&k)
        return 0

    def stats(self):
        """Number of connections, and the listener's figures of unauthenticated connections."""
        out = self.listener.strangers.stats() if self.listener is not None else {}
        return {**out, "connections": self.io.connections(), "connections_stopped": self.io.stops()}

    def links(self):
        """Peer, bytes that the kernel has taken and not sent, and its struct tcp_info, of connections dialled here."""
        return self.io.links()

    def close(self):
        """All partitions and gates were detached before: end the listener, then the I/O thread."""
        # All of it each time, as an interrupt may have ended an earlier call; what is done already does nothing.
        if self.listener is not None:
            self.listener.close()
        with self.lock:
            self.closed = True
            self.io.stop()
        if self.tls is not None:
            self.tls.relay.close()


register_transport("tcp", TcpTransport)
