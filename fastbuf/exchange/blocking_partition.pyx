"""A blocking partition: stored in a file as it is written, read once it is finished (map in the ``.pxd``)."""

import os
import tempfile

from cpython.pystate cimport PyThreadState
from libc.errno cimport ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strerror, strlen

from fastbuf._native.atomics cimport *
from fastbuf._native.crc32c cimport fb_crc32c
from fastbuf._native.sockets cimport close
from fastbuf.exchange.failure cimport FAIL_CORRUPT, FAIL_RESOURCE, failure_code, failure_raise, failure_set
from fastbuf.exchange.result_partition cimport ResultPartition
from fastbuf.exchange.result_subpartition cimport *
from fastbuf.exchange.spill_file cimport *
from fastbuf.memory.pool_core cimport local_in_use, local_limit, local_try_acquire, segment_data, segment_recycle

from fastbuf.checks import spill_directory
from fastbuf.errors import ResourceError
from fastbuf.fork_safe import rests_for_fork

cdef extern from "Python.h" nogil:
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)
    unsigned long PyThread_get_thread_ident()


def nameless_file(directory):
    """Descriptor of a new file without a name in `directory`; the kernel deletes it with its last descriptor.

    Raises
    ------
    ResourceError
        The file cannot be created.
    """
    try:
        try:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:     # some file systems lack O_TMPFILE; a fault of the directory itself shows below
            fd, name = tempfile.mkstemp(prefix="fastbuf-", dir=directory)
            os.unlink(name)
            return fd
    except OSError as error:
        raise ResourceError(
            f"a blocking partition cannot be stored in {directory!r}: {error.strerror}; name another directory with "
            "ExchangeConfig(spill_directory=...)") from error


cdef class BlockingPartition(ResultPartition):
    """All subpartitions in one file without a name; consumers can read when the producer has finished.

    Made by :meth:`ShuffleEnvironment.create_result_partition` with ``partition_type="blocking"``.  A writer that needs
    room writes finished buffers to the file, many by one system call, and recycles their segments.  It needs the
    pool's memory, like a pipelined partition, and 16 bytes for each contiguous piece of one subpartition in the file.

    Raises
    ------
    ResourceError
        The directory is full or cannot be written to (the message names the setting), or the file was truncated.
    BlockCorrupt
        With ``ExchangeConfig(checksum=True)``: the file was altered. The consumers fail too.

    Notes
    -----
    Source: Flink's sort-merge blocking shuffle (FLIP-148), one data file and an index for each partition.
    """

    def __init__(self, environment, int subpartitions, unsigned int channel, config, maximum=None):
        cdef size_t slots
        ResultPartition.__init__(self, environment, subpartitions, channel, config, maximum)
        self.directory = spill_directory(config.spill_directory, "ExchangeConfig(spill_directory=...)")
        name = self.directory.encode("utf-8", "replace")[:sizeof(self.where) - 1]
        memcpy(self.where, <const char *> name, len(name))
        stage = <Subpartition *> calloc(subpartitions, sizeof(Subpartition))
        if stage == NULL:
            raise MemoryError
        self.stage = stage
        for i in range(subpartitions):
            if sub_init(&stage[i], config.max_buffers_per_channel, self.pool_core, self.core.event) != 0:
                raise MemoryError
        slots = stage[0].mask + 1
        self.consumers = <uint8_t *> calloc(subpartitions, 1)
        self.batch = <SpillBatch *> calloc(1, sizeof(SpillBatch))
        if self.consumers == NULL or self.batch == NULL:
            raise MemoryError
        self.batch.taken = <uint32_t *> calloc(subpartitions, sizeof(uint32_t))
        self.batch.segments = <int32_t *> calloc(slots, sizeof(int32_t))
        self.batch.offsets = <uint64_t *> calloc(slots, sizeof(uint64_t))
        self.batch.crcs = <uint32_t *> calloc(slots, sizeof(uint32_t))
        if self.batch.taken == NULL or self.batch.segments == NULL or self.batch.offsets == NULL or \
                self.batch.crcs == NULL:
            raise MemoryError
        fd = nameless_file(self.directory)
        self.file = spill_new(fd, subpartitions, config.checksum)
        if self.file == NULL:
            close(fd)
            raise MemoryError
        rests_for_fork(self)

    def before_fork(self):
        """Nothing to wait for: the file comes and goes with the GIL."""

    def after_fork(self, child):
        """In a child: the kernel deletes the file with its last descriptor, which is to be the parent's."""
        if child and self.file != NULL:
            close(self.file.fd)
            self.file.fd = -1

    def __dealloc__(self):
        if self.stage != NULL and self.stage != self.subs:
            for i in range(self.subpartitions):
                sub_free(&self.stage[i])
            free(self.stage)
            self.stage = NULL
        if self.batch != NULL:
            free(self.batch.taken)
            free(self.batch.segments)
            free(self.batch.offsets)
            free(self.batch.crcs)
            free(self.batch)
        free(self.consumers)
        spill_free(self.file)

    # ---- writing

    cdef bint make_room(self) noexcept nogil:
        return self.store()

    cdef bint store(self) noexcept nogil:
        """Writes all finished buffers and events to the file and recycles the segments; False: none, or it failed."""
        cdef int part
        cdef bint first = True
        cdef bint any = False
        if failure_code(&self.core.failure) or self.file == NULL:
            return False
        self.batch.known = 0
        for part in range(self.subpartitions):
            if fb_u32_load_acquire(&self.subs[part].cancelled):
                any = any or sub_queued(&self.stage[part]) > 0
                sub_discard(&self.stage[part])
                continue
            if self.collect(part, first) != 0:
                return False
            any = any or self.batch.taken[part] > 0
            first = False
        return self.write_batch() == 0 and any

    cdef int collect(self, int part, bint first) noexcept nogil:
        """Adds the finished buffers of `part` to the batch, and their positions to the index; -1: failed."""
        cdef SpillBatch *b = self.batch
        cdef Subpartition *s = &self.stage[part]
        cdef uint32_t left = sub_queued(s)
        cdef uint32_t position = 0
        cdef uint32_t n
        cdef uint64_t at
        cdef uint32_t crc
        cdef int error
        cdef Slot *slot
        while left:
            slot = &s.slots[(fb_u32_load_relaxed(&s.head) + b.taken[part]) & s.mask]
            if not fb_u32_load_acquire(&slot.finished):
                break
            n = slot.event.length if slot.event != NULL else fb_u32_load_acquire(&slot.committed)
            at = 0
            crc = 0
            if slot.event == NULL and position < b.known and b.segments[position] == slot.segment:
                at = b.offsets[position]
                crc = b.crcs[position]
            elif n:
                if b.n == SPILL_VECTORS:
                    if self.write_batch() != 0:
                        return -1
                    slot = &s.slots[fb_u32_load_relaxed(&s.head) & s.mask]
                at = self.file.size + b.bytes
                b.vectors[b.n].iov_base = event_data(slot.event) if slot.event != NULL \
                    else segment_data(self.pool_core, slot.segment)
                b.vectors[b.n].iov_len = n
                if self.file.checksum:
                    crc = fb_crc32c(0, b.vectors[b.n].iov_base, n)
                b.n += 1
                b.bytes += n
            if n:
                error = spill_note(self.file, part, at, n, slot.event != NULL, crc)
                if error:
                    self.failed(error, b"an index entry of")
                    return -1
            if first:
                b.segments[position] = slot.segment
                b.offsets[position] = at
                b.crcs[position] = crc
                b.known = position + 1
            b.taken[part] += 1
            position += 1
            left -= 1
        return 0

    cdef int write_batch(self) noexcept nogil:
        """Writes the batch, usually by one system call, and recycles its segments; -1: failed."""
        cdef SpillBatch *b = self.batch
        cdef PyThreadState *state = NULL
        cdef bint mine = False
        cdef int part
        cdef int error = 0
        if b.n:
            # A disk may be slow, and the writer may hold the GIL here: it is released.  Nobody takes its segments
            # meanwhile, since `writing` is set, by the writer or here.
            if not self.unlocked:
                if not self.writing:
                    self.writing = PyThread_get_thread_ident()
                    mine = True
                state = PyEval_SaveThread()
            error = spill_append(self.file, b.vectors, b.n)
            if state != NULL:
                PyEval_RestoreThread(state)
                if mine:
                    self.writing = 0
        for part in range(self.subpartitions):
            while b.taken[part]:
                sub_advance(&self.stage[part], 0, True)
                b.taken[part] -= 1
        b.n = 0
        b.bytes = 0
        if error:
            self.failed(error, b"writing to")
            return -1
        return 0

    cdef void failed(self, int error, const char *doing) noexcept nogil:
        # Reports the error to the writer and to every consumer.
        cdef char text[1024]
        cdef int part
        cdef const char *why = b"it ends before its index does"
        if error == SPILL_ALTERED:
            snprintf(text, sizeof(text),
                     b"%s the file of blocking partition %u in %s: a buffer does not have the CRC32C that it was "
                     b"written with; the disk, or another process that can write there, has altered it",
                     doing, self.channel, self.where)
            failure_set(&self.core.failure, FAIL_CORRUPT, text, strlen(text))
        else:
            if error != SPILL_CUT:
                why = strerror(error)
            snprintf(text, sizeof(text),
                     b"%s the file of blocking partition %u in %s: %s, after %llu bytes; give it room, or name another "
                     b"directory with ExchangeConfig(spill_directory=...)",
                     doing, self.channel, self.where, why, <unsigned long long> self.file.size)
            failure_set(&self.core.failure, FAIL_RESOURCE, text, strlen(text))
        fb_u32_store_release(&self.core.abort_asked, 1)
        for part in range(self.subpartitions):
            # A consumer that is being attached may not be seen here; it checks `abort_asked` afterwards.
            if self.is_attached(part) and not fb_u32_load_acquire(&self.subs[part].closed):
                self.subs[part].notify(self.subs[part].notify_context)

    cdef bint is_attached(self, int part) noexcept nogil:
        # Any thread.  Pairs with set_transport: whoever sees the consumer also sees its notify and notify_context.
        cdef bint attached = self.consumers[part] != CONSUMER_NONE
        fb_fence_seq_cst()
        return attached

    cdef int end(self) except -1:
        """Writes what is left to the file; from here on consumers can read."""
        cdef int part
        if self.ended:
            return 0
        self.begin_writing()
        with nogil:
            self.finish_shared()
            for part in range(self.subpartitions):
                self.finish_buffer(part)
            self.store()
        self.unlocked = False
        self.writing = 0
        failure_raise(&self.core.failure)
        self.ended = True
        fb_u32_store_release(&self.finished, 1)
        for part in range(self.subpartitions):
            self.subs[part].notify(self.subs[part].notify_context)
        return 0

    cpdef flush(self):
        """Only raises an error that was set: nothing can be read before the partition is finished."""
        self.check()

    cdef uint64_t stored(self) noexcept nogil:
        cdef uint64_t sum = 0
        cdef int part
        if not fb_u32_load_acquire(&self.finished):
            for part in range(self.subpartitions):
                sum += fb_u64_load_relaxed(&self.stage[part].bytes)
        return sum

    # ---- reading

    cdef int load(self, int part) noexcept nogil:
        """Loads the next buffer or event into the queue of `part`; 0: no room, segment or data; -1: failed."""
        cdef Subpartition *s = &self.subs[part]
        cdef EventBlob *event
        cdef uint32_t n
        cdef int32_t segment
        cdef int error
        cdef SpillKind kind
        if self.file == NULL or fb_u32_load_relaxed(&s.ended) or fb_u32_load_acquire(&s.cancelled):
            return 0
        kind = spill_next(self.file, part, self.segment_size, &n)
        if kind == SPILL_END:
            sub_end(s)
            return 0
        if kind == SPILL_IS_EVENT:
            if not sub_has_event_room(s):
                return 0
            event = event_new(NULL, n)
            if event == NULL:
                self.failed(ENOMEM, b"reading")
                return -1
            error = spill_read(self.file, part, event_data(event), n)
            if error == 0:
                sub_push_event(s, event)
                return self.loaded(s)
            free(event)
        else:
            if not sub_has_room(s, False):
                return 0
            segment = local_try_acquire(self.pool.core)
            if segment < 0:
                return 0
            error = spill_read(self.file, part, segment_data(self.pool_core, segment), n)
            if error == 0:
                sub_begin(s, segment)
                sub_commit(s, n)
                sub_finish(s)
                return self.loaded(s)
            segment_recycle(self.pool_core, segment)
        self.failed(error, b"reading")
        return -1

    cdef int loaded(self, Subpartition *s) noexcept nogil:
        # The consumer may have closed meanwhile.  After `closed` only the thread that writes the queue may drain it.
        if fb_u32_load_acquire(&s.closed):
            sub_discard(s)
            return 0
        return 1

    cdef int refill(self, int part) except -1:
        cdef int got
        if not fb_u32_load_acquire(&self.finished):
            return 0
        with nogil:
            got = self.load(part)
        if got < 0:
            failure_raise(&self.core.failure)
        return got

    cdef void pump(self) noexcept nogil:
        """Loads what remote consumers have room for; leaves a segment for each subpartition with an empty queue."""
        cdef int part
        cdef int64_t spare = <int64_t> local_limit(self.pool.core) - local_in_use(self.pool.core)
        for part in range(self.subpartitions):
            if not fb_u32_load_acquire(&self.subs[part].closed) and \
                    (self.consumers[part] != CONSUMER_REMOTE or sub_queued(&self.subs[part]) == 0):
                spare -= 1
        for part in range(self.subpartitions):
            if not self.is_attached(part) or self.consumers[part] != CONSUMER_REMOTE or \
                    fb_u32_load_acquire(&self.subs[part].closed):
                continue
            if sub_queued(&self.subs[part]) == 0:
                if self.load(part) < 0:
                    return
            while spare > 0:
                if self.load(part) <= 0:
                    break
                spare -= 1

    def remote_closed(self):
        """Loads what there is room for; True: every remote consumer has acknowledged the end, or cancelled.

        Subpartitions without a consumer are not waited for.
        """
        if fb_u32_load_acquire(&self.finished) and not self.closed and not failure_code(&self.core.failure):
            self.writing = PyThread_get_thread_ident()
            with nogil:
                self.pump()
            self.writing = 0
        for i in range(self.subpartitions):
            if self.consumers[i] == CONSUMER_REMOTE and not fb_u32_load_acquire(&self.subs[i].closed):
                return False
        return True

    def set_transport(self, int part, kind, where):
        """Note who drains `part`, and notify it if there is already something to read."""
        ResultPartition.set_transport(self, part, kind, where)
        fb_fence_seq_cst()              # orders the transport's notify before `consumers`: see is_attached
        self.consumers[part] = CONSUMER_LOCAL if kind == "local" else CONSUMER_REMOTE
        if fb_u32_load_acquire(&self.finished):
            self.subs[part].notify(self.subs[part].notify_context)

    @property
    def spilled_bytes(self):
        """Bytes in the file."""
        return self.file.size if self.file != NULL and self.ended else 0

    # ---- ending

    cdef bint read_in_place(self) noexcept:
        cdef int part
        for part in range(self.subpartitions):
            if self.consumers[part] == CONSUMER_LOCAL and not fb_u32_load_acquire(&self.subs[part].closed):
                return True
        return False

    cdef int reader_ended(self) except -1:
        if self.writer_gone:
            if not self.read_in_place():
                self.destroy()
        elif self.ended and self.all_closed() and not self.writing:
            spill_free(self.file)       # consumed
            self.file = NULL
        return 0

    def destroy(self):
        """Last step of the writer; local gates that still read keep the partition, and the last one frees it."""
        cdef int part
        if self.destroyed:
            return
        self.closed = True
        self.finish_shared()
        for part in range(self.subpartitions):
            self.drop(part)
            sub_discard(&self.stage[part])
            if self.consumers[part] != CONSUMER_LOCAL:
                sub_forget_drainer(&self.subs[part])
                if not fb_u32_load_acquire(&self.subs[part].closed):
                    sub_close(&self.subs[part], True)
            if fb_u32_load_acquire(&self.subs[part].closed):
                sub_discard(&self.subs[part])       # loaded between its consumer's last check and `closed`
        if fb_u32_load_acquire(&self.finished) and self.read_in_place():
            self.writer_gone = True
            return
        spill_free(self.file)
        self.file = NULL
        ResultPartition.destroy(self)
