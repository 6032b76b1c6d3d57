"""The targets of a writer: what they may be, and how its subpartitions reach them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastbuf.checks import named_host, port, whole
from fastbuf.config import TRANSPORTS
from fastbuf.errors import ConfigError, PeerLost, descriptors_for
from fastbuf.exchange.address import GateAddress, gate_key
from fastbuf.exchange.clock import monotonic
from fastbuf.exchange.connection import Credentials, NobodyListens, Refused, transport_lacks
from fastbuf.exchange.input_gate import InputGate
from fastbuf.exchange.result_partition import ResultPartition

if TYPE_CHECKING:
    from fastbuf.exchange.channel_selector import ChannelSelector
    from fastbuf.exchange.environment import ShuffleEnvironment

RETRY_S = 0.02  #: pause before the next try to connect to a consumer that does not listen yet


def checked_target(index: int, target: Any) -> Any:
    """A gate, its address, or ``(host, port, gate_id)``; raises ConfigError if `target` is nothing of these."""
    if isinstance(target, (InputGate, GateAddress)):
        return target
    name = f"target {index}"
    if not isinstance(target, (tuple, list)) or len(target) != 3:
        raise ConfigError(f"{name} is {target!r:.80}: it must be an InputGate, its address, or (host, port, gate_id)")
    host, number, gate_id = target
    named_host(f"host of {name}", host)
    return host, port(f"port of {name}", number, 1), whole(f"gate_id of {name}", gate_id, 1, (1 << 32) - 1)


def checked_targets(targets: Sequence[Any], partition_type: str) -> list[Any]:
    """Those of a result partition; raises ConfigError if one is nothing that can be reached, or is missing."""
    if not targets:
        raise ConfigError("targets is empty: a result partition needs at least one")
    if partition_type != "blocking" and any(target is None for target in targets):
        raise ConfigError(
            "a target is None: a pipelined partition needs all targets when it is made, only a blocking one can "
            "attach them later"
        )
    return [None if target is None else checked_target(index, target) for index, target in enumerate(targets)]


def check_slow_consumer(policy: str, partition_type: str, selector: ChannelSelector | None) -> None:
    """ConfigError if a slow consumer's policy is not for such a partition."""
    if policy != "wait" and (partition_type != "pipelined" or selector is None or not selector.to_all):
        raise ConfigError(
            f"on_slow_consumer is {policy!r}: that needs selector=fastbuf.broadcast() and a pipelined "
            "partition, as a record of another selector has one consumer, which must not miss it"
        )


def reach(environment: ShuffleEnvironment, partition: ResultPartition, index: int, target: Any) -> None:
    """Connect subpartition `index` to its consumer; one that does not listen yet is tried for ``connect_timeout_s``."""
    credentials = partition.credentials
    if isinstance(target, InputGate):
        target.check_producer(credentials.epoch, credentials.fingerprint)
        target.add_local(partition, index)
        partition.meets(index, gate_key(target.secret, target.epoch, target.gate_id), "")
        return
    if isinstance(target, GateAddress):
        credentials = replace(credentials, secret=target.secret)
    host, number, gate_id = target[:3]
    address = (host, int(number), int(gate_id))
    fallbacks = partition.fallbacks
    deadline = monotonic() + partition.config.connect_timeout_s
    while True:
        try:
            with descriptors_for(f"to connect consumer {host}:{number}"):
                _connect(environment, partition, index, address, credentials)
            break
        except PeerLost as error:
            if not isinstance(error.__cause__, ConnectionRefusedError | NobodyListens):
                raise
            if monotonic() >= deadline:
                waited = partition.config.connect_timeout_s
                raise PeerLost(f"{error}; tried for {waited:g} s (connect_timeout_s)") from error.__cause__
        partition.fallbacks = fallbacks
        time.sleep(RETRY_S)
        partition.check()
    partition.meets(index, gate_key(credentials.secret, credentials.epoch, address[2]), f"{host}:{number}")


def _connect(
    environment: ShuffleEnvironment,
    partition: ResultPartition,
    index: int,
    address: tuple[str, int, int],
    credentials: Credentials,
) -> None:
    """Connect by the transport that is wanted, or by the first that can."""
    wanted = partition.config.transport
    names = TRANSPORTS[1:] if wanted == "auto" else (wanted,)
    for name in names:
        lacks = transport_lacks(name, environment, partition)
        if not lacks:
            try:
                environment.transport(name).connect(partition, index, address, credentials)
                return
            except Refused as error:
                if name == names[-1]:
                    raise PeerLost(f"transport is {name!r}: {error}") from error
                partition.fallbacks += 1
        elif name == wanted:
            raise ConfigError(f"transport is {name!r}: it needs {lacks}")
