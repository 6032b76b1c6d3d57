"""Alignment of the barriers that come through a gate's channels: what is blocked, and when a snapshot is due.

A state machine that knows neither gate nor clock: it is told what came in, and says what to do.  The rules are Flink's
(``SingleCheckpointBarrierHandler`` without its unaligned half, and ``CheckpointBarrierTracker``).  Channels are kept in
sets and ids compared at each step, never counted: a channel that ends, or an abort before its barriers, would
make a count wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fastbuf.checks import flag, whole
from fastbuf.errors import ConfigError

MOST_PENDING = 50  #: checkpoints that at least once keeps track of at a time; one more ends the oldest of them
_MOST_ID = (1 << 64) - 1


@dataclass(frozen=True)
class Step:
    """What to do now, in the order of `cancelled`, `snapshot`, `block` and `unblock`; then read on.

    Attributes
    ----------
    block
        Channels that the gate blocks now.
    unblock
        Channels that the gate reads again: after the snapshot was taken, if there is one.
    snapshot
        All barriers of this checkpoint are here: take it now, and forward the barrier. None: not now.
    cancelled
        This checkpoint ends here, and each older one with it: forward a cancel marker, and decline. None: none does.
    """

    block: tuple[int, ...] = ()
    unblock: tuple[int, ...] = ()
    snapshot: int | None = None
    cancelled: int | None = None


_NOTHING = Step()


class Alignment:
    """Follows the checkpoints of one task.

    Exactly once, a channel is blocked from its barrier to the last one, and one checkpoint is followed at a time: a
    barrier of a newer one ends it.  At least once, nothing is ever blocked: rows that came behind a barrier may be in
    the snapshot, and come again after a restart; several checkpoints are followed, and one that is complete ends those
    before it.

    Parameters
    ----------
    channels
        The numbers of the channels that barriers come through.
    exactly_once
        Whether to block.

    Attributes
    ----------
    exactly_once
        As given.
    current
        The newest checkpoint that was heard of, 0: none.
    since
        When the first barrier of the newest alignment came, in the seconds of `now`.
    taken_s
        How long the last alignment took that ended in a snapshot.
    """

    def __init__(self, channels: Iterable[int], exactly_once: bool = True) -> None:
        self.exactly_once = flag("exactly_once", exactly_once)
        self.current = 0
        self.since = 0.0
        self.taken_s = 0.0
        self._open = {whole("channel", channel, 0, (1 << 32) - 1) for channel in channels}
        self._all = frozenset(self._open)
        self._over = 0  # the newest that is complete or cancelled: it and older ones are stale
        self._arrived: dict[int, set[int]] = {}  # by checkpoint, oldest first: channels whose barrier is here
        self._began: dict[int, float] = {}  # by the same checkpoints: when the first barrier came
        self._last = 0.0  # when something last came
        self._blocked: set[int] = set()

    @property
    def pending(self) -> bool:
        """Whether some barriers of a checkpoint are here and others are awaited."""
        return bool(self._arrived)

    @property
    def waiting(self) -> frozenset[int]:
        """The channels whose barrier of `current` is awaited; none, if it is not pending."""
        return frozenset(self._open - self._arrived[self.current]) if self._arrived else frozenset()

    def barrier(self, channel: int, checkpoint: int, now: float) -> Step:
        """A barrier came.

        Parameters
        ----------
        channel
            The channel that it came through.
        checkpoint
            Its id, of at least 1.
        now
            Seconds of a monotonic clock.

        Raises
        ------
        ConfigError
            No such channel, or it has ended.
        """
        self._check(channel, checkpoint)
        if channel not in self._open:
            raise ConfigError(f"channel {channel} has ended: it cannot have a barrier of checkpoint {checkpoint}")
        self._last = now
        cancelled: int | None = None
        unblock: tuple[int, ...] = ()
        if checkpoint not in self._arrived:
            # This channel leaves out what lies between: its barrier of an older one would have come before this.
            if checkpoint <= self.current:
                return _NOTHING
            if self._arrived and (self.exactly_once or len(self._arrived) == MOST_PENDING):
                cancelled = next(iter(self._arrived))
                unblock = self._forget(cancelled)
            self.current, self.since = checkpoint, now
            self._arrived[checkpoint], self._began[checkpoint] = set(), now
        self._arrived[checkpoint].add(channel)
        if self._open <= self._arrived[checkpoint]:
            return Step((), unblock + self._complete(checkpoint, now), checkpoint, cancelled)
        if not self.exactly_once:
            return Step(cancelled=cancelled) if cancelled else _NOTHING
        self._blocked.add(channel)
        return Step((channel,), unblock, None, cancelled)

    def cancel(self, channel: int, checkpoint: int) -> Step:
        """A cancel marker came in band: the checkpoint is over, and its barriers that still come are stale."""
        self._check(channel, checkpoint)
        return self.abort(checkpoint)

    def end(self, channel: int, now: float | None = None) -> Step:
        """The channel has ended, and counts as aligned for what is pending; ending it again does nothing.

        Parameters
        ----------
        now
            As in :meth:`barrier`, for `taken_s`; None: when something last came.
        """
        self._check(channel, 1)
        self._open.discard(channel)
        self._last = self._last if now is None else now
        for checkpoint in reversed(self._arrived):  # the newest that waited for this channel alone ends the older ones
            if self._open <= self._arrived[checkpoint]:
                return Step((), self._complete(checkpoint, self._last), checkpoint)
        return _NOTHING

    def abort(self, checkpoint: int) -> Step:
        """The coordinator gave the checkpoint up; this may be told before its first barrier comes."""
        whole("checkpoint", checkpoint, 1, _MOST_ID)
        if checkpoint <= self._over or (self.exactly_once and checkpoint < self.current):
            return _NOTHING
        self.current = max(self.current, checkpoint)
        return Step((), self._forget(checkpoint), None, checkpoint)

    def _check(self, channel: int, checkpoint: int) -> None:
        whole("checkpoint", checkpoint, 1, _MOST_ID)
        if channel not in self._all:
            raise ConfigError(f"channel is {channel!r:.80}: this alignment has {sorted(self._all)!s:.200}")

    def _complete(self, checkpoint: int, now: float) -> tuple[int, ...]:
        self.taken_s = now - self._began[checkpoint]
        return self._forget(checkpoint)

    def _forget(self, checkpoint: int) -> tuple[int, ...]:
        """That one and the older ones are over; the channels that are to be unblocked."""
        self._over = checkpoint
        for older in [each for each in self._arrived if each <= checkpoint]:
            del self._arrived[older], self._began[older]
        blocked, self._blocked = tuple(sorted(self._blocked)), set()
        return blocked
