"""The shuffle environment: owns the segment pool and the transports, and makes and closes gates and writers."""

from __future__ import annotations

import atexit
import contextlib
import copy
import dataclasses
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from fastbuf.checks import flag, instance, named_host, one_of, port, segment_bytes, whole
from fastbuf.config import (
    ON_PEER_LOSS,
    ON_SLOW_CONSUMER,
    POOL_SEGMENTS,
    SEGMENT_BYTES,
    TRANSPORTS,
    ExchangeConfig,
    TlsConfig,
)
from fastbuf.errors import ConfigError, ExchangeClosed, ResourceError, descriptors_for, left_by
from fastbuf.exchange.address import GateAddress, check_secret, new_secret, schema_key
from fastbuf.exchange.blocking_partition import BlockingPartition
from fastbuf.exchange.channel_selector import ChannelSelector, forward, round_robin
from fastbuf.exchange.connection import (
    Credentials,
    Transport,
    make_monitor,
    make_transport,
    transport_lacks,
    warn_once,
)
from fastbuf.exchange.input_gate import InputGate
from fastbuf.exchange.named_thread import start_thread
from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.exchange.result_partition import ResultPartition
from fastbuf.exchange.salted_hash import watched
from fastbuf.exchange.targets import check_slow_consumer, checked_target, checked_targets, reach
from fastbuf.fork_safe import is_in_openssl
from fastbuf.memory import NetworkBufferPool
from fastbuf.memory.layout import memfd_denied
from fastbuf.serializers.serializer import Serializer

_open: weakref.WeakSet[ShuffleEnvironment] = weakref.WeakSet()  # environments that are not closed


@atexit.register
def _close_at_exit() -> None:
    """Close forgotten environments while their threads can still be joined."""
    with contextlib.ExitStack() as stack:  # closes all of them, even if the warning of one is raised as an error
        for environment in list(_open):
            stack.callback(environment.forgotten)


def open_environments() -> list[ShuffleEnvironment]:
    """The environments of this process that are not closed; a forked child has copies of its parent's too."""
    return [environment for environment in _open if environment.pid == os.getpid()]


_PARTITION_TYPES = {"pipelined": ResultPartition, "blocking": BlockingPartition}


def _checked_config(config: ExchangeConfig | None) -> ExchangeConfig:
    return instance("config", config, ExchangeConfig, type(None)) or ExchangeConfig()


def _checked_credentials(epoch: Any, secret: Any) -> tuple[int, bytes]:
    if not isinstance(secret, (bytes, bytearray)):  # the message must not show its value
        raise ConfigError(f"secret is of type {type(secret).__name__}: it must be bytes")
    return whole("epoch", epoch, 0, (1 << 64) - 1), bytes(secret)


def _check_address(host: Any, ports: Any) -> None:
    named_host("host", host)
    if not isinstance(ports, (tuple, list)) or len(ports) != 2:
        raise ConfigError(f"ports is {ports!r:.80}: it must be the first and the last port to try; (0, 0): any")
    if port("the first of ports", ports[0]) > port("the last of ports", ports[1]):
        raise ConfigError(f"ports is {tuple(ports)}: the first must not be above the last")


class ShuffleEnvironment:
    """The segments of a process, and the transports that move them; one per process.

    Parameters
    ----------
    segments
        Segments in the pool; with `segment_size` this is the memory limit of all exchanges of this environment.
    segment_size
        Bytes of one segment.
    tls
        Certificates for the TCP connections to other processes; ``None``: TCP without TLS. An environment with TLS
        cannot connect to one without.
    shared
        Put the segments into memory that other processes on this host can map; they then read in place what is
        written here (see ``transport`` of :class:`ExchangeConfig`). Otherwise they get it through TCP.
    prefault
        Allocate all pages of the segments now, so that no first use of a segment waits for the kernel to clear a page.
        Otherwise pages are allocated when segments are first used.

    Raises
    ------
    ConfigError, ResourceError
        See :class:`Arena`: a number out of range, or more memory than there is.

    Notes
    -----
    If an exception leaves the ``with`` block, the peers of all unfinished exchanges fail with its type and text.

    Examples
    --------
    >>> import fastbuf as fb
    >>> rows = fb.RowSerializer(fb.Schema.of(id="int64", name="string"))
    >>> with fb.ShuffleEnvironment(segments=64) as env:
    ...     writer, gates = env.exchange(serializer=rows, consumers=2, selector=fb.hash_by("id"))
    ...     writer.emit((1, "one"))
    ...     writer.emit((2, "two"))
    ...     writer.close()
    ...     sorted(record for gate in gates for record in gate)
    [(1, 'one'), (2, 'two')]
    """

    def __init__(
        self,
        segments: int = POOL_SEGMENTS,
        segment_size: int = SEGMENT_BYTES,
        tls: TlsConfig | None = None,
        shared: bool = False,
        prefault: bool = False,
    ) -> None:
        instance("tls", tls, TlsConfig, type(None))
        shared = flag("shared", shared)
        self.pid = os.getpid()
        self.tls = tls
        segments, segment_size = whole("segments", segments, 1), segment_bytes(segment_size)
        #: Why shared memory cannot be had here although it was asked for; empty: it was not, or can be.
        self.unshared = memfd_denied(segments, segment_size) if shared else ""
        if self.unshared:
            warn_once(f"shared=True does nothing here ({self.unshared}): processes of this host exchange through TCP")
        self.shared = shared = shared and not self.unshared
        self.pool = NetworkBufferPool(segments=segments, segment_size=segment_size, memfd=shared, prefault=prefault)
        self._lock = threading.RLock()
        self._transports: dict[str, Transport] = {}  # by name, those that were needed so far
        self._gates: dict[int, InputGate] = {}
        #: In order of creation, with the writer of each once it is made.
        self._partitions: dict[ResultPartition, weakref.ref[RecordWriter] | None] = {}
        #: Partitions whose writers were collected before they were closed; to be released.
        self.dropped: list[ResultPartition] = []
        self._monitor: Any = None
        self._numbers = itertools.count(1)
        self._listens_on: tuple[str, ...] = ()  # hosts that other processes may connect to
        #: Host and port that producers in other processes connect to; ``None`` before :meth:`listen`.
        self.address: tuple[str, int] | None = None
        self._closed = False  # nothing new can be made
        self._ended = False  # everything was released
        _open.add(self)

    # ---- making

    def _check(self) -> None:
        if self._closed:
            raise ExchangeClosed("the ShuffleEnvironment is closed")
        if os.getpid() != self.pid:
            raise ExchangeClosed("this ShuffleEnvironment belongs to the parent process: make a new one after the fork")

    def transport(self, name: str) -> Transport:
        """The transport `name`, which the first call makes."""
        with self._lock:
            self._check()
            if name not in self._transports:
                self._transports = {**self._transports, name: make_transport(name, self)}  # others may iterate over it
            return self._transports[name]

    def listen(self, host: str = "127.0.0.1", ports: tuple[int, int] = (0, 0)) -> tuple[str, int]:
        """Let producers in other processes connect to this environment's gates; starts the I/O thread.

        Parameters
        ----------
        host
            The address to listen on.
        ports
            First and last port to try; ``(0, 0)``: any.

        Returns
        -------
        tuple of str and int
            The address bound.

        Raises
        ------
        ConfigError
            A gate has a secret that is too short for this address, or the environment listens already.
        ResourceError
            No port of the range is free, or this process may open no more files or start no more threads.
        """
        _check_address(host, ports)
        with self._lock, descriptors_for(f"to listen on {host}"):
            self._check()
            self._check_secrets(host)
            self.address = address = self.transport("tcp").listen(host, ports)
            self._listens_on = (*self._listens_on, host)
        for name in TRANSPORTS[1:]:
            if name != "tcp" and not transport_lacks(name, self):
                try:
                    with descriptors_for(f"to listen beside {host}:{address[1]}"):
                        self.transport(name).listen(address[0], (address[1], address[1]))
                except (OSError, ResourceError) as error:  # no descriptor or thread is left for it
                    warn_once(f"transport {name!r} cannot listen here ({error}): others reach this process through TCP")
        return address

    def _check_secrets(self, host: str) -> None:
        """Refuse to listen on `host` if a gate's secret is too short for it; the lock is held."""
        for gate in self._gates.values():
            check_secret(gate.gate_id, gate.secret, gate.serializer, host)

    def create_input_gate(
        self,
        serializer: Serializer,
        channels: int | None = None,
        epoch: int = 0,
        secret: bytes | None = None,
        config: ExchangeConfig | None = None,
        maximum: int | None = None,
        lazy: bool = False,
        on_error: str | Callable[[Exception], Any] = "raise",
        on_peer_loss: str = "error",
    ) -> InputGate:
        """Make the consuming end of an exchange.

        Parameters
        ----------
        serializer
            The same as the producers'; a columnar one needs its schema.
        channels
            Number of producers; ``None``: unknown until :meth:`InputGate.seal`, any number may connect.
        epoch
            The number of this run: producers with another one are refused.
        secret
            What producers in other processes must prove to know; ``None``: 32 random bytes, in ``gate.secret`` and
            ``gate.address``. Fewer than 16 bytes are allowed only on a loopback address and without pickles.
        maximum
            Most segments the gate may hold.
        lazy
            With a :class:`RowSerializer`: give out many records at a time as a :class:`LazyRows`, which decodes only
            the fields that are read.
        on_error
            What becomes of a record that cannot be decoded: a pickle that does not load, a row that the serializer's
            `record` refuses. ``"raise"``: the reader gets what was decoded before it, then the error, and the gate has
            failed. ``"skip"``: it is left out, and counted (``skipped`` in :meth:`InputGate.stats`). A function is
            called with the error, which names the record and its producer: then the record is left out too, unless
            the function raises.
        on_peer_loss
            What it means that a producer is lost (its process has ended, its connection is gone, or it is silent), or
            has given up (:meth:`RecordWriter.abort`), before it has ended. ``"error"``: the gate fails, so nothing is
            ever missed in silence. ``"forget"``: its channel has ended; all records that came of it whole are given
            out, a half one behind them is dropped and counted. ``"wait"``: the same, and the gate is not finished
            before another producer of that number has come and ended. With either, another producer may take the
            number, and without `channels` one that has ended may come again; :attr:`InputGate.lost` and
            :meth:`InputGate.stats` tell who was lost.
        """
        self._check()
        self._release_dropped()
        with self._lock:
            self._check()
            config = _checked_config(config)
            instance("serializer", serializer, Serializer)
            channels = whole("channels", channels, 1) if channels is not None else None
            maximum = whole("maximum", maximum, 1) if maximum is not None else None
            epoch, secret = _checked_credentials(epoch, new_secret() if secret is None else secret)
            lazy = flag("lazy", lazy)
            one_of("on_peer_loss", on_peer_loss, ON_PEER_LOSS)
            number = next(self._numbers)
            for host in self._listens_on:
                check_secret(number, secret, serializer, host)
            gate = InputGate(
                self, serializer, channels, number, epoch, secret, config, maximum, lazy, on_error, on_peer_loss
            )
            self._gates[number] = gate
            return gate

    def create_result_partition(
        self,
        serializer: Serializer,
        targets: Sequence[InputGate | GateAddress | tuple[str, int, int] | None],
        channel: int = 0,
        epoch: int = 0,
        secret: bytes = b"",
        selector: ChannelSelector | None = None,
        config: ExchangeConfig | None = None,
        on_peer_loss: str = "error",
        maximum: int | None = None,
        partition_type: str = "pipelined",
        on_slow_consumer: str = "wait",
    ) -> RecordWriter:
        """Make the producing end of an exchange.

        Parameters
        ----------
        serializer
            The same as the consumers'.
        targets
            One per subpartition: a gate of this environment (read in place); or, for a gate of another one, its
            :attr:`~InputGate.address` or ``(host, port, gate_id)`` with `secret`. In a blocking partition also
            ``None``: :meth:`RecordWriter.attach` names the consumer later.
        channel
            This producer's number, unique in the exchange.
        epoch
            The same as the gates'.
        secret
            The secret of gates whose target does not contain it.
        selector
            Chooses the target of each record; default: each in turn (:func:`round_robin`).
        on_peer_loss
            ``"error"``: the writer fails if a consumer is lost; ``"cancel"``: a lost consumer counts as cancelled, and
            so does, over TCP, one that does not listen yet.
        maximum
            Most segments the writer may hold.
        partition_type
            ``"pipelined"``: consumers read from the first buffer on. ``"blocking"``: buffers are stored in a file (in
            ``ExchangeConfig.spill_directory``), and consumers read once the writer has finished or closed.
        on_slow_consumer
            Of a broadcast (:func:`broadcast`), when a consumer has had ``max_buffers_per_channel`` buffers unread for
            ``buffer_timeout_s`` (-1: 0.1 s):
            ``"wait"``: the writer waits, so all get all, at the pace of the slowest. ``"drop"``: it gets no more, whole
            records only, until it has read half of them; :meth:`RecordWriter.dropped` counts the buffers. (A record of
            more than eight segments waits.) ``"disconnect"``: it is cut off and fails with ExchangeAborted, which says
            why. ``"drop_oldest"``: what it has not come to is dropped, the oldest first and as much as the new needs,
            so that it goes on with the newest; it goes on with a whole record, and misses no event that was queued.
            :meth:`RecordWriter.records_dropped` counts the records, ``records_missed`` of its gate's stats too. All
            three need that many segments for each consumer, and eight more.
        """
        self._check()
        instance("serializer", serializer, Serializer)
        instance("targets", targets, Sequence)
        if callable(selector):
            raise ConfigError(f"selector is {selector!r:.80}: wrap a function of yours, as fastbuf.custom(func)")
        instance("selector", selector, ChannelSelector, type(None))
        channel = whole("channel", channel, 0, (1 << 32) - 1)
        maximum = whole("maximum", maximum, 1) if maximum is not None else None
        epoch, secret = _checked_credentials(epoch, secret)
        one_of("partition_type", partition_type, tuple(_PARTITION_TYPES))
        one_of("on_peer_loss", on_peer_loss, ("error", "cancel"))
        one_of("on_slow_consumer", on_slow_consumer, ON_SLOW_CONSUMER)
        check_slow_consumer(on_slow_consumer, partition_type, selector)
        targets = checked_targets(targets, partition_type)
        config = _checked_config(config)
        self._release_dropped()
        with self._lock:
            self._check()
            policy: dict[str, Any] = {}
            if on_slow_consumer != "wait":
                policy = {"on_slow_consumer": on_slow_consumer, "chunks": serializer.kind == "columnar"}
            partition = _PARTITION_TYPES[partition_type](self, len(targets), channel, config, maximum, **policy)
            partition.credentials = Credentials(epoch, secret, schema_key(serializer), on_peer_loss == "cancel")
            self._partitions[partition] = None
        try:
            for index, target in enumerate(targets):
                if target is not None:
                    reach(self, partition, index, target)
            if selector is None:
                selector = round_robin() if len(targets) > 1 else forward()
            # A copy, since a selector keeps state for its writer.
            writer = RecordWriter(partition, serializer, watched(copy.copy(selector), targets))
            with self._lock:
                self._partitions[partition] = weakref.ref(writer)
            return writer
        except BaseException as error:
            partition.fail(f"producer {channel} could not be set up: {error}")
            self.release_partition(partition)
            raise

    def attach(self, partition: ResultPartition, index: int, target: Any) -> None:
        """Called by :meth:`RecordWriter.attach`."""
        self._check()
        partition.check()
        index = whole("index", index, 0, partition.subpartitions - 1)
        target = checked_target(index, target)
        if partition.attached(index):
            raise ConfigError(f"subpartition {index} has its consumer already")
        reach(self, partition, index, target)

    @overload
    def exchange(  # type: ignore[overload-overlap]  # 1 is an int too; the first overload that fits is taken
        self,
        serializer: Serializer,
        consumers: int = 1,
        selector: ChannelSelector | None = None,
        partition_type: str = "pipelined",
        buffer_timeout_s: float | None = None,
        producers: Literal[1] = 1,
        config: ExchangeConfig | None = None,
    ) -> tuple[RecordWriter, list[InputGate]]: ...
    @overload
    def exchange(
        self,
        serializer: Serializer,
        consumers: int = 1,
        selector: ChannelSelector | None = None,
        partition_type: str = "pipelined",
        buffer_timeout_s: float | None = None,
        *,
        producers: int,
        config: ExchangeConfig | None = None,
    ) -> tuple[list[RecordWriter], list[InputGate]]: ...

    def exchange(
        self,
        serializer: Serializer,
        consumers: int = 1,
        selector: ChannelSelector | None = None,
        partition_type: str = "pipelined",
        buffer_timeout_s: float | None = None,
        producers: int = 1,
        config: ExchangeConfig | None = None,
    ) -> tuple[Any, list[InputGate]]:
        """Make an exchange between threads of this process; the default selector is :func:`round_robin`.

        A record waits in a partly filled buffer for up to `buffer_timeout_s` (0.1 s, unless `config` says another);
        with 0 each leaves at once, as a request and its answer should.

        Returns
        -------
        writer, gates
            A :class:`RecordWriter` (a list of them when `producers` is above 1) and a list of `consumers` gates.

        Notes
        -----
        Memory is bounded: a writer waits while its consumers do not read. If one thread both writes and reads, it must
        not fill the writer's queues (``max_buffers_per_channel``), or must use ``try_emit``.
        """
        consumers, producers = whole("consumers", consumers, 1), whole("producers", producers, 1)
        config = _checked_config(config)
        if buffer_timeout_s is not None:
            config = dataclasses.replace(config, buffer_timeout_s=buffer_timeout_s)
        self._check()
        self._release_dropped()
        guaranteed = self.pool.stats().required
        # A gate needs a segment for each channel; a writer one for each consumer, and one more.
        wanted = guaranteed + consumers * producers + producers * (consumers + 1)
        if wanted > self.pool.total:
            raise ResourceError(
                f"an exchange of {producers} producers and {consumers} consumers requires {wanted - guaranteed} "
                f"segments, but only {self.pool.total - guaranteed} of {self.pool.total} are not guaranteed to others: "
                f"make the ShuffleEnvironment with segments={wanted} or more"
            )
        gates: list[InputGate] = []
        writers: list[RecordWriter] = []
        with self.pool.limits_at_the_end():
            try:
                for _ in range(consumers):
                    gates.append(self.create_input_gate(serializer, channels=producers, config=config))
                for i in range(producers):
                    writers.append(
                        self.create_result_partition(
                            serializer,
                            gates,
                            channel=i,
                            selector=selector,
                            config=config,
                            partition_type=partition_type,
                        )
                    )
            except BaseException:
                for writer in writers:  # nobody else has a reference to them
                    writer.abort("the exchange could not be set up")
                for gate in gates:
                    gate.close()
                raise
        return (writers[0] if producers == 1 else writers), gates

    # ---- figures

    def stats(self) -> dict[str, int]:
        """Current figures, and counters since the environment was made.

        Returns
        -------
        dict of str to int
            ``segments``, ``segments_in_use``, ``segments_guaranteed`` (to gates and writers, so that none waits for
            another), ``gates``, ``writers``; ``connections`` (to other environments), ``connections_stopped`` (how
            often reading was stopped because a gate had no segment; never with credits), ``shared_channels`` (through
            shared memory). Once it listens: ``places`` for connections that have not proved a secret yet, and
            ``places_taken``; ``producers_proved``; ``strangers_refused`` (their handshake was wrong);
            ``strangers_dropped`` (their handshake took too long, or their place was needed).
        """
        pool = self.pool.stats()
        figures = {
            "segments": pool.total,
            "segments_in_use": pool.in_use,
            "segments_guaranteed": pool.required,
            "gates": len(self._gates),
            "writers": len(self._partitions),
            "connections": 0,
            "connections_stopped": 0,
            "shared_channels": 0,
            "places": 0,
            "places_taken": 0,
            "producers_proved": 0,
            "strangers_refused": 0,
            "strangers_dropped": 0,
        }
        for transport in self._transports.values():
            for name, value in transport.stats().items():
                figures[name] = figures.get(name, 0) + value
        return figures

    # ---- ending

    def gate(self, gate_id: int) -> InputGate | None:
        """The open gate with that number, if there is one."""
        return self._gates.get(gate_id)

    def gates(self) -> Iterable[InputGate]:
        """The open gates."""
        return list(self._gates.values())

    def writers(self, closing: bool = False) -> list[RecordWriter]:
        """The open writers; closing: also those that are being closed."""
        writers = [reference() for reference in list(self._partitions.values()) if reference is not None]
        return [writer for writer in writers if writer is not None and (closing or not writer.closed)]

    def links(self) -> dict[str, tuple[int, bytes]]:
        """By peer (``"host:port"``) of a TCP connection made here: unsent bytes in the kernel, ``struct tcp_info``."""
        tcp: Any = self._transports.get("tcp")
        return {peer: (unsent, info) for peer, unsent, info in tcp.links()} if tcp is not None else {}

    @property
    def monitor(self) -> Any:
        """The :class:`fastbuf.monitor.EnvironmentMonitor` of everything made here."""
        with self._lock:
            if self._monitor is None:
                self._check()
                self._monitor = make_monitor(self)
            return self._monitor

    def release_gate(self, gate: InputGate) -> None:
        """Called by :meth:`InputGate.close`."""
        if self._monitor is not None:
            self._monitor.last_look(gate)
        for transport in self._transports.values():
            transport.let_go_gate(gate)
        gate.free()
        with self._lock:  # last, so that after an interrupt close() still finds the gate
            self._gates.pop(gate.gate_id, None)
        self._release_dropped()

    def release_partition(self, partition: ResultPartition) -> None:
        """Called by the writer's ``close`` and ``abort``."""
        partition.wait_idle()
        with self._lock:
            if partition not in self._partitions:
                return
        if self._monitor is not None:
            self._monitor.last_look(partition)
        for transport in self._transports.values():
            transport.let_go_partition(partition)
        partition.destroy()
        with self._lock:
            self._partitions.pop(partition, None)

    def _release_dropped(self) -> None:
        """Free the segments of writers that were dropped; their consumers were told then."""
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while self.dropped:
                partition = self.dropped.pop()
                partition.wait_aborted(0.5)
                self.release_partition(partition)

    def close(self) -> None:
        """Close everything made here, in any state, and free all segments. Idempotent.

        A gate that was neither read to its end nor closed is aborted: its producers fail. To cancel without an error,
        call ``gate.close()`` before, or use ``with gate:``. After an interrupt (Ctrl-C) the next call continues.
        """
        self._end(None)

    def _end(self, kind: type[BaseException] | None, value: BaseException | None = None) -> None:
        """Like close; kind, value: the exception that ends the environment, if any."""
        if self._ended or os.getpid() != self.pid:
            self._closed = True
            return
        with self._lock:
            self._closed = True
        with self.pool.limits_at_the_end():
            for partition in list(self._partitions):
                died = "the producer's ShuffleEnvironment was closed"
                partition.fail(left_by("the producer's ShuffleEnvironment", kind, value) if kind else died)
                partition.wait_aborted(0.5)
                self.release_partition(partition)
            for gate in self.gates():
                died = (
                    f"the consumer's ShuffleEnvironment was closed before gate {gate.gate_id} was read to its end; "
                    "a consumer that needs no more data calls gate.close(), or uses 'with gate:'"
                )
                gate.end(left_by("the consumer's ShuffleEnvironment", kind, value) if kind else died)
        for transport in self._transports.values():
            transport.close()
        self.pool.destroy()
        if self._monitor is not None:
            self._monitor.close()
        self._ended = True
        _open.discard(self)

    def __del__(self) -> None:
        # The garbage collector frees the parts in any order, and the I/O thread points into gates and partitions.
        if is_in_openssl():  # which another environment's thread needs to end
            start_thread(self.forgotten, "fastbuf-close")
        else:
            self.forgotten()

    def forgotten(self) -> None:
        """Close an environment that its owner forgot to close, with a warning."""
        if getattr(self, "_ended", True) or os.getpid() != self.pid:
            return
        try:
            warnings.warn(
                f"a ShuffleEnvironment of {self.pool.total} segments (listening on: {self.address}; open: "
                f"{len(self._gates)} gates, {len(self._partitions)} writers) was not closed: it is closed now; use "
                "`with fb.ShuffleEnvironment(...) as env:`, or call env.close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            self.close()

    def __repr__(self) -> str:
        pool = self.pool.stats()
        state = "closed" if self._closed else "open"
        return (
            f"<ShuffleEnvironment: {state}, {len(self._gates)} gates, {len(self._partitions)} writers, "
            f"{pool.in_use} of {pool.total} segments of {pool.segment_size} bytes in use>"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a ShuffleEnvironment belongs to its process and cannot be copied: make one in each process")

    def __enter__(self) -> ShuffleEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(kind, value)
