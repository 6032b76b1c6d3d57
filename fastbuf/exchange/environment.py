"""The shuffle environment: owns the arena, the pool and the transports; all is made through it and ends with it."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, overload

from fastbuf.checks import flag, instance, one_of, port, whole
from fastbuf.config import POOL_SEGMENTS, SEGMENT_BYTES, ExchangeConfig, TlsConfig
from fastbuf.errors import ConfigError, ExchangeClosed, PeerLost
from fastbuf.exchange.blocking_partition import BlockingPartition
from fastbuf.exchange.channel_selector import ChannelSelector, forward
from fastbuf.exchange.connection import Refused, Transport, make_transport
from fastbuf.exchange.input_gate import InputGate
from fastbuf.exchange.record_writer import RecordWriter
from fastbuf.exchange.result_partition import ResultPartition
from fastbuf.exchange.shared_wire import SharedWire, WireTarget
from fastbuf.memory import NetworkBufferPool
from fastbuf.serializers.serializer import Serializer

_PARTITION_TYPES = {"pipelined": ResultPartition, "blocking": BlockingPartition}


def _checked_config(config: ExchangeConfig | None) -> ExchangeConfig:
    return instance("config", config, ExchangeConfig, type(None)) or ExchangeConfig()


def _checked_credentials(epoch: Any, secret: Any) -> tuple[int, bytes]:
    return whole("epoch", epoch, 0, (1 << 64) - 1), bytes(instance("secret", secret, bytes, bytearray))


def _checked_target(index: int, target: Any) -> Any:
    if target is None or isinstance(target, (InputGate, WireTarget)):
        return target
    name = f"target {index}"
    if not isinstance(target, (tuple, list)) or len(target) != 3 or not isinstance(target[0], str) or not target[0]:
        raise ConfigError(f"{name} is {target!r:.80}: it must be an InputGate, or (host, port, gate_id)")
    host, number, gate_id = target
    return host, port(f"port of {name}", number, 1), whole(f"gate_id of {name}", gate_id, 1, (1 << 32) - 1)


def _check_address(host: Any, ports: Any) -> None:
    instance("host", host, str)
    if not isinstance(ports, (tuple, list)) or len(ports) != 2:
        raise ConfigError(f"ports is {ports!r:.80}: it must be the first and the last port to try; (0, 0): any")
    if port("the first of ports", ports[0]) > port("the last of ports", ports[1]):
        raise ConfigError(f"ports is {tuple(ports)}: the first must not be above the last")


class ShuffleEnvironment:
    """One per process: the segments, and what moves them.

    Parameters
    ----------
    segments
        Segments of the pool; with `segment_size` the byte cap of all exchanges of this environment.
    segment_size
        Bytes of one segment.
    tls
        Certificates for the TCP connections to other processes; ``None``: TCP without TLS. An end with TLS and one
        without refuse each other.
    shared
        The segments lie in memory that other processes of the host can map, so that they read in place what is written
        here (``transport`` of :class:`ExchangeConfig`); else they get it through TCP.
    prefault
        Take every page of the segments now: the memory is resident from the start, and no segment's first use waits
        for the kernel to clear a page; else pages come as segments are used.

    Raises
    ------
    ConfigError, ResourceError
        See :class:`Arena`: a number out of range, or more memory than there is.

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
        self.shared = shared
        self.pool = NetworkBufferPool(segments=segments, segment_size=segment_size, memfd=shared, prefault=prefault)
        self._lock = threading.RLock()
        self._transport: Transport | None = None
        self._memfd: Any = None
        self._watermark: Any = None
        self._wires: list[Any] = []
        self._gates: dict[int, InputGate] = {}
        self._partitions: dict[ResultPartition, None] = {}  # in the order in which they were made
        self._numbers = itertools.count(1)
        self._closed = False  # nothing new is made
        self._ended = False  # all is let go of

    # ---- making

    def _check(self) -> None:
        if self._closed:
            raise ExchangeClosed("the ShuffleEnvironment is closed")
        if os.getpid() != self.pid:
            raise ExchangeClosed("this ShuffleEnvironment belongs to the parent process: make one of your own")

    def _tcp(self) -> Transport:
        with self._lock:
            self._check()
            if self._transport is None:
                self._transport = make_transport("tcp", self)
            return self._transport

    def _shared_memory(self) -> Any:
        with self._lock:
            self._check()
            if self._memfd is None:
                self._memfd = make_transport("memfd", self)
            return self._memfd

    def listen(self, host: str = "127.0.0.1", ports: tuple[int, int] = (0, 0)) -> tuple[str, int]:
        """Let producers of other processes connect to this environment's gates; starts the I/O thread.

        Parameters
        ----------
        host
            The address to listen on, and no other.
        ports
            First and last port to try; ``(0, 0)``: any.

        Returns
        -------
        tuple of str and int
            The address bound.
        """
        self._check()
        _check_address(host, ports)
        address = self._tcp().listen(host, ports)
        if self.shared:
            self._shared_memory().listen(address[0], (address[1], address[1]))
        return address

    def create_input_gate(
        self,
        serializer: Serializer,
        channels: int | None = None,
        epoch: int = 0,
        secret: bytes = b"",
        config: ExchangeConfig | None = None,
        maximum: int | None = None,
        lazy: bool = False,
    ) -> InputGate:
        """Make the consuming end of an exchange.

        Parameters
        ----------
        serializer
            As the producers'; a columnar one needs its schema.
        channels
            Producers expected; ``None``: they come as they connect, until :meth:`InputGate.seal`.
        epoch
            This run's nonce: a producer of another is refused.
        secret
            What producers of other processes must prove to know.
        maximum
            Most segments the gate may hold.
        lazy
            Of a :class:`RowSerializer`: records are given out many at a time as a :class:`LazyRows`, which decodes
            the fields that are read of them.
        """
        with self._lock:
            self._check()
            config = _checked_config(config)
            instance("serializer", serializer, Serializer)
            channels = whole("channels", channels, 1) if channels is not None else None
            maximum = whole("maximum", maximum, 1) if maximum is not None else None
            epoch, secret = _checked_credentials(epoch, secret)
            lazy = flag("lazy", lazy)
            gate = InputGate(self, serializer, channels, next(self._numbers), epoch, secret, config, maximum, lazy)
            self._gates[gate.gate_id] = gate
            if self._transport is not None:
                self._transport.register_gate(gate)
            return gate

    def create_result_partition(
        self,
        serializer: Serializer,
        targets: Sequence[InputGate | WireTarget | tuple[str, int, int] | None],
        channel: int = 0,
        epoch: int = 0,
        secret: bytes = b"",
        selector: ChannelSelector | None = None,
        config: ExchangeConfig | None = None,
        on_peer_loss: str = "error",
        maximum: int | None = None,
        partition_type: str = "pipelined",
    ) -> RecordWriter:
        """Make the producing end of an exchange.

        Parameters
        ----------
        serializer
            As the consumers'.
        targets
            One per subpartition: a gate of this environment (read in place), or ``(host, port, gate_id)``. Of a
            blocking partition ``None`` as well: :meth:`RecordWriter.attach` names it later.
        channel
            This producer's number; no other producer of the exchange has it.
        epoch, secret
            As the gates'.
        selector
            Which target a record goes to; default: all to the first.
        on_peer_loss
            ``"error"``: a consumer that vanishes fails the writer; ``"cancel"``: it counts as one that has enough.
        maximum
            Most segments the writer may hold.
        partition_type
            ``"pipelined"``: consumers read from the first buffer on. ``"blocking"``: what is written is stored in a
            file (in ``ExchangeConfig.spill_directory``), and they read once the writer has finished or closed.
        """
        self._check()
        instance("serializer", serializer, Serializer)
        instance("targets", targets, Sequence)
        instance("selector", selector, ChannelSelector, type(None))
        channel = whole("channel", channel, 0, (1 << 32) - 1)
        maximum = whole("maximum", maximum, 1) if maximum is not None else None
        epoch, secret = _checked_credentials(epoch, secret)
        one_of("partition_type", partition_type, tuple(_PARTITION_TYPES))
        one_of("on_peer_loss", on_peer_loss, ("error", "cancel"))
        targets = [_checked_target(index, target) for index, target in enumerate(targets)]
        if partition_type != "blocking" and None in targets:
            raise ConfigError("a pipelined partition has its targets from the beginning: only a blocking one may wait")
        if not targets:
            raise ConfigError("a result partition without targets")
        config = _checked_config(config)
        with self._lock:
            self._check()
            partition = _PARTITION_TYPES[partition_type](self, len(targets), channel, config, maximum)
            partition.credentials = {
                "epoch": epoch,
                "secret": secret,
                "fingerprint": serializer.fingerprint,
                "loss_is_cancel": on_peer_loss == "cancel",
            }
            self._partitions[partition] = None
        try:
            for index, target in enumerate(targets):
                if target is not None:
                    self._reach(partition, index, target)
            # A copy: selectors keep a place of their own in each writer.
            return RecordWriter(partition, serializer, copy.copy(selector) if selector is not None else forward(0))
        except BaseException as error:
            partition.fail(f"producer {channel} could not be set up: {error}")
            self.release_partition(partition)
            raise

    def _reach(self, partition: ResultPartition, index: int, target: Any) -> None:
        if isinstance(target, InputGate):
            target.add_local(partition, index)
        elif isinstance(target, WireTarget):
            target.wire.connect(partition, index, target.gate)
        else:
            host, number, gate_id = target
            address = (host, number, gate_id)
            if not self._connect_shared(partition, index, address):
                self._tcp().connect(partition, index, address, partition.credentials)

    def _connect_shared(self, partition: ResultPartition, index: int, address: tuple[str, int, int]) -> bool:
        """Through shared memory, if the gate is of this host and either can map the other's; else False."""
        wanted = partition.config.transport
        if wanted == "tcp":
            return False
        if not self.shared or isinstance(partition, BlockingPartition):
            if wanted == "memfd":
                raise ConfigError("transport is 'memfd': for pipelined partitions of a ShuffleEnvironment(shared=True)")
            return False
        try:
            self._shared_memory().connect(partition, index, address, partition.credentials)
            return True
        except Refused as error:
            if wanted == "memfd":
                raise PeerLost(f"transport is 'memfd': {error}") from error
            partition.fallbacks += 1
            return False

    def attach(self, partition: ResultPartition, index: int, target: Any) -> None:
        """Called by :meth:`RecordWriter.attach`."""
        self._check()
        partition.check()
        index = whole("index", index, 0, partition.subpartitions - 1)
        target = _checked_target(index, target)
        if partition.attached(index):
            raise ConfigError(f"subpartition {index} has its consumer already")
        self._reach(partition, index, target)

    def _watermarks(self) -> Any:
        with self._lock:
            self._check()
            if self._watermark is None:
                self._watermark = make_transport("watermark", self)
                self._wires.append(self._watermark)
            return self._watermark

    def listen_wire(self, host: str = "127.0.0.1", ports: tuple[int, int] = (0, 0)) -> tuple[str, int]:
        """Let other environments reach this one's gates by wires under watermarks; arguments as of :meth:`listen`."""
        self._check()
        _check_address(host, ports)
        address: tuple[str, int] = self._watermarks().listen(host, ports)
        return address

    def create_wire(self, flow_control: str = "credit", address: tuple[str, int] | None = None) -> Any:
        """Make a wire that channels share, to compare flow controls; ``wire.to(gate)`` is a target reached over it.

        Parameters
        ----------
        flow_control
            ``"credit"``, or ``"watermark"``: what came before it, to compare with.
        address
            Where another environment listens for wires (:meth:`listen_wire`), under watermarks alone: the wire is a
            TCP connection to it, and ``wire.to(gate_id)`` names a gate of it. Default: a wire within this process.
        """
        if address is not None:
            if flow_control != "watermark":
                raise ConfigError(f"flow_control is {flow_control!r}: a wire to another environment is 'watermark'")
            return self._watermarks().wire(address)
        with self._lock:
            self._check()
            wire = SharedWire(self, flow_control)
            self._wires.append(wire)
            return wire

    @overload
    def exchange(  # type: ignore[overload-overlap]  # 1 is an int: the first that fits is taken
        self,
        serializer: Serializer,
        consumers: int = 1,
        selector: ChannelSelector | None = None,
        partition_type: str = "pipelined",
        buffer_timeout: float | None = None,
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
        buffer_timeout: float | None = None,
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
        buffer_timeout: float | None = None,
        producers: int = 1,
        config: ExchangeConfig | None = None,
    ) -> tuple[Any, list[InputGate]]:
        """An exchange between threads of this process.

        Returns
        -------
        writer, gates
            A :class:`RecordWriter` (a list of them when `producers` is above 1) and a list of `consumers` gates.

        Notes
        -----
        Memory is bounded: a writer waits while its consumers do not read. One thread that both writes and reads must
        leave the writer's queues room (``max_buffers_per_channel``) or use ``try_emit``.
        """
        consumers, producers = whole("consumers", consumers, 1), whole("producers", producers, 1)
        config = _checked_config(config)
        if buffer_timeout is not None:
            values = {name: getattr(config, name) for name in config.__dataclass_fields__}
            config = ExchangeConfig(**{**values, "buffer_timeout_s": buffer_timeout})
        with self.pool.limits_at_the_end():
            gates = [self.create_input_gate(serializer, channels=producers, config=config) for _ in range(consumers)]
            writers = [
                self.create_result_partition(
                    serializer, gates, channel=i, selector=selector, config=config, partition_type=partition_type
                )
                for i in range(producers)
            ]
        return (writers[0] if producers == 1 else writers), gates

    # ---- ending

    def gate(self, gate_id: int) -> InputGate | None:
        """The open gate of that number."""
        return self._gates.get(gate_id)

    def gates(self) -> Iterable[InputGate]:
        """The open gates."""
        return list(self._gates.values())

    def release_gate(self, gate: InputGate) -> None:
        """Called by :meth:`InputGate.close`."""
        for transport in (self._transport, self._memfd, *self._wires):
            if transport is not None:
                transport.let_go_gate(gate)
        gate.free()
        with self._lock:  # last: what an interrupt leaves half done is found again by close
            self._gates.pop(gate.gate_id, None)

    def release_partition(self, partition: ResultPartition) -> None:
        """Called by the writer's ``close`` and ``abort``."""
        partition.wait_idle()
        with self._lock:
            if partition not in self._partitions:
                return
        for transport in (self._transport, self._memfd, *self._wires):
            if transport is not None:
                transport.let_go_partition(partition)
        partition.destroy()
        with self._lock:
            self._partitions.pop(partition, None)

    def close(self) -> None:
        """End everything made here, in any state; the segments are home afterwards. Idempotent.

        A call that was interrupted (Ctrl-C) is gone on with by the next one.
        """
        if self._ended or os.getpid() != self.pid:
            self._closed = True
            return
        with self._lock:
            self._closed = True
        with self.pool.limits_at_the_end():
            for partition in list(self._partitions):
                partition.fail("the producer's ShuffleEnvironment was closed")
                partition.wait_aborted(0.5)
                self.release_partition(partition)
            for gate in self.gates():
                gate.close()
        for transport in (self._transport, self._memfd, *self._wires):
            if transport is not None:
                transport.close()
        self.pool.destroy()
        self._ended = True

    def __del__(self) -> None:
        # Before the collector takes the parts in no order: the I/O thread points into gates and partitions.
        if hasattr(self, "_ended"):
            self.close()

    def __repr__(self) -> str:
        pool = self.pool.stats()
        state = "closed" if self._closed else "open"
        return (
            f"<ShuffleEnvironment: {state}, {len(self._gates)} gates, {len(self._partitions)} writers, "
            f"{pool.in_use} of {pool.total} segments of {pool.segment_size} bytes in use>"
        )

    def __enter__(self) -> ShuffleEnvironment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
