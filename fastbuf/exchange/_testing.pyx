"""Helpers for tests and benches: write and read raw buffers, without records, at the speed of C."""

import time

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from fastbuf._native.activity cimport *
from fastbuf._native.atomics cimport *
from fastbuf.exchange.channel_reader cimport SharedChannel
from fastbuf.exchange.driver cimport Driver
from fastbuf.exchange.failure cimport failure_code
from fastbuf.exchange.gate_core cimport gate_channels, gate_release, gate_take_ready
from fastbuf.exchange.input_channel cimport ReadyBuffer
from fastbuf.exchange.input_gate cimport InputGate
from fastbuf.exchange.record_writer cimport RecordWriter
from fastbuf.exchange.result_partition cimport WRITE_BLOCKED, WRITE_DROPPED, WRITE_OK, ResultPartition, WriteState
from fastbuf.exchange.shared_reader cimport NEWS_BYTES, NEWS_NONE, News, SharedLook, SharedReader, shared_glance
from fastbuf.memory.arena cimport Arena
from fastbuf.memory.pool_core cimport segment_data

cdef enum:
    SLICE_NS = 200000000
    BURST = 16                  # buffers that `write_raw` writes before it notifies, as a batch of records does


cdef extern from *:
    """
    #include <stdint.h>
    static inline uint64_t fb_sum(const uint8_t *p, uint32_t n) {
        const uint64_t *w = (const uint64_t *)p;
        uint64_t a = 0, b = 0, c = 0, d = 0;
        for (uint32_t i = 0; i + 4 <= n / 8; i += 4) { a += w[i]; b += w[i + 1]; c += w[i + 2]; d += w[i + 3]; }
        return a + b + c + d;
    }
    """
    uint64_t fb_sum(const uint8_t *p, uint32_t n) nogil


def write_raw(RecordWriter writer not None, uint64_t buffers, bint fill):
    """Queue `buffers` full buffers for the first consumer; fill: copy bytes into each, else leave it as it is."""
    cdef ResultPartition p = writer.partition
    cdef uint64_t done = 0, told_at = 0
    cdef uint32_t epoch
    cdef WriteState state
    cdef bint owed = False
    cdef Driver *driver = p.core.driver         # TCP's; the caller does not close it meanwhile
    cdef uint8_t *source = <uint8_t *> malloc(p.segment_size)
    if source == NULL:
        raise MemoryError
    memset(source, 1, p.segment_size)
    p.begin_writing()
    try:
        with nogil:
            while done < buffers:
                # First without loading the epoch, as the other side writes to its cache line.
                state = p.open_buffer(0, False)
                if state == WRITE_BLOCKED:
                    epoch = fb_event_epoch(p.core.event)
                    state = p.open_buffer(0, False)
                if owed and (state != WRITE_OK or done - told_at >= BURST):
                    p.tell(0)
                    owed = False
                    told_at = done
                if state == WRITE_DROPPED:
                    break
                if state == WRITE_BLOCKED:
                    if driver != NULL:
                        driver.enter(driver)
                    if not p.spin(epoch, driver):
                        if fb_event_prepare(p.core.event) == epoch:
                            with gil:
                                p.sleep(epoch, fb_now_ns() + SLICE_NS)
                    continue
                if fill:
                    memcpy(p.buffers[0].data, source, p.segment_size)
                owed |= p.commit_early(0, p.segment_size)
                done += 1
            if owed:
                p.tell(0)
    finally:
        p.writing = 0
        free(source)
    return done


def read_raw(InputGate gate not None, uint64_t buffers, int look):
    """Take `buffers` buffers of the only memfd channel in place; look: 0: read nothing, 1: one word, 2: every byte.

    Returns
    -------
    int
        The sum of what was read.
    """
    cdef SharedReader r
    cdef uint64_t sum = 0
    cdef uint64_t done = 0
    cdef const uint8_t *data
    cdef uint32_t length, epoch
    cdef bint last
    cdef SharedLook at
    cdef News news
    while not gate.intake.in_place:
        time.sleep(0.001)       # the producer is about to connect; gate.poll would take buffers
    r = (<SharedChannel> gate.intake.in_place[0]).ring
    with nogil:
        while done < buffers:
            news = r.next(False, &data, &length, &last)
            if news == NEWS_NONE:
                r.leave()
                r.look(&at)
                if shared_glance(&at, 1):       # before the bell, to whose cache line the writer writes
                    continue
                epoch = fb_event_epoch(gate.core.event)
                news = r.next(False, &data, &length, &last)
            if news == NEWS_NONE:
                r.look(&at)
                gate.sleep(epoch, fb_now_ns() + SLICE_NS, &at, 1, NULL, False)
                continue
            if news != NEWS_BYTES or not r.enter():
                break
            if look == 1:
                sum += (<const uint64_t *> data)[0]
            elif look == 2:
                sum += fb_sum(data, length)
            r.advance(length, last)
            done += 1
        r.leave()
    return sum


def looks(InputGate gate not None):
    """Entries of the gate's hash table examined so far to open its channels."""
    return gate.core.looks


def rung(InputGate gate not None):
    """How often the gate's bell was rung so far."""
    return fb_event_epoch(gate.core.event)


def read_wire(InputGate gate not None, uint64_t buffers):
    """Take `buffers` buffers of channels that a transport's thread fills (TCP), and read a word of each.

    Returns
    -------
    int
        The sum of what was read.
    """
    cdef ReadyBuffer ready[8]
    cdef uint64_t sum = 0
    cdef uint64_t done = 0
    cdef uint32_t n, i, key
    cdef Driver *driver
    while gate_channels(gate.core) == 0:
        time.sleep(0.001)       # the producer is about to connect
    while done < buffers and not failure_code(&gate.core.failure):
        with nogil:
            key = fb_event_epoch(gate.core.event)
            n = gate_take_ready(gate.core, ready, 8)
            for i in range(n):
                if ready[i].segment >= 0:
                    sum += (<const uint64_t *> segment_data(gate.core.buffers.pool, ready[i].segment))[0]
                    done += 1
            gate_release(gate.core, ready, n)
            if n == 0:
                driver = gate.core.driver
                if driver != NULL:
                    driver.enter(driver)
                gate.sleep(key, fb_now_ns() + SLICE_NS, NULL, 0, driver, True)
    return sum


# ---- for comparison: the fastest hand-over possible.  Two processes share an arena and spin on two counters, which are
# ---- in segment 0, a cache line each; the other segments form a ring.


cdef inline fb_au64 *_counter(Arena arena, int which) noexcept nogil:
    return <fb_au64 *> (arena.base + which * 64)


def limit_write(Arena arena not None, uint64_t buffers, bint fill):
    """The writer for `limit_read`: hands over `buffers` segments."""
    cdef uint64_t ring = arena.segments - 1
    cdef uint64_t done = 0
    cdef uint64_t head = 0
    cdef uint8_t *source = <uint8_t *> malloc(arena.segment_size)
    if source == NULL:
        raise MemoryError
    memset(source, 1, arena.segment_size)
    with nogil:
        while done < buffers:
            while done - head >= ring:
                head = fb_u64_load_acquire(_counter(arena, 1))
                if done - head >= ring:
                    fb_cpu_relax()
            if fill:
                memcpy(arena.base + (1 + done % ring) * <uint64_t> arena.stride, source, arena.segment_size)
            done += 1
            fb_u64_store_release(_counter(arena, 0), done)
        while fb_u64_load_acquire(_counter(arena, 1)) != buffers:
            fb_cpu_relax()
    free(source)


def limit_read(Arena arena not None, uint64_t buffers, int look):
    """Takes `buffers` segments from `limit_write`; `look` is as in `read_raw`."""
    cdef uint64_t ring = arena.segments - 1
    cdef uint64_t done = 0
    cdef uint64_t tail = 0
    cdef uint64_t sum = 0
    cdef const uint8_t *data
    with nogil:
        while done < buffers:
            while tail == done:
                tail = fb_u64_load_acquire(_counter(arena, 0))
                if tail == done:
                    fb_cpu_relax()
            data = arena.base + (1 + done % ring) * <uint64_t> arena.stride
            if look == 1:
                sum += (<const uint64_t *> data)[0]
            elif look == 2:
                sum += fb_sum(data, <uint32_t> arena.segment_size)
            done += 1
            fb_u64_store_release(_counter(arena, 1), done)
    return sum


cdef class Changing:
    """An activity that one thread changes as fast as it can while others read it."""

    cdef fb_activity activity
    cdef fb_au64 done

    def __cinit__(self):
        fb_activity_init(&self.activity, 0)

    def change(self, int64_t rounds):
        """Change it `rounds` times; the time is the round's number, and the target equals the state."""
        cdef int64_t i
        with nogil:
            for i in range(1, rounds + 1):
                fb_activity_enter(&self.activity, i % FB_STATES, i % FB_STATES, i)
            fb_u64_store_release(&self.done, 1)

    def look(self):
        """Read it until the changes end; -> number of reads, and how many of them mixed two changes."""
        cdef fb_activity_picture p
        cdef int64_t seen = 0, torn = 0, total
        cdef int i
        with nogil:
            while not fb_u64_load_acquire(&self.done):
                fb_activity_read(&self.activity, 0, &p)
                total = 0
                for i in range(FB_STATES):
                    total += p.total[i]
                # each round takes 1, so the totals add up to the time of the last change, which set state and target
                torn += total != p.since or p.state != p.target or p.since % FB_STATES != p.state
                seen += 1
        return seen, torn
