"""Samples the states of writers at a fixed interval, without the GIL.

So code that holds the GIL cannot delay a sample.  A Python thread would get the GIL just when a busy task releases it
to wait, and would report back pressure that is not there.
"""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free

from fastbuf._native.activity cimport *
from fastbuf._native.atomics cimport *
from fastbuf.exchange.result_partition cimport ResultPartition


cdef class Sampler:
    """Samples writers in the calling thread; another thread may stop it."""

    def stop(self):
        """Stop sampling now, and for good."""
        self.over = True
        fb_event_notify(&self.stopped)

    def blocked(self, list writers, int samples, double every_s):
        """Count the samples in which each writer was blocked.

        Parameters
        ----------
        writers : list of RecordWriter
        samples : int
        every_s : float

        Returns
        -------
        tuple of int and list of int
            Samples taken, fewer if it was stopped; for each writer, those that found it blocked.
        """
        cdef list partitions = [writer.partition for writer in writers]     # keeps them alive meanwhile
        cdef Py_ssize_t n = len(partitions), i
        cdef fb_activity **looked_at = <fb_activity **> calloc(n + 1, sizeof(fb_activity *))
        cdef uint32_t *counts = <uint32_t *> calloc(n + 1, sizeof(uint32_t))
        cdef fb_activity_picture p
        cdef int taken = 0
        cdef int64_t every = <int64_t> (every_s * 1e9)
        cdef int64_t due = fb_now_ns()
        cdef uint32_t key = fb_event_epoch(&self.stopped)
        cdef bint stopped = self.over
        if looked_at == NULL or counts == NULL:
            free(looked_at)
            free(counts)
            raise MemoryError
        for i in range(n):
            looked_at[i] = &(<ResultPartition> partitions[i]).core.activity
        with nogil:
            while taken < samples and not stopped:
                for i in range(n):
                    fb_activity_read(looked_at[i], fb_now_ns(), &p)
                    if p.state in (FB_WAIT_CREDIT, FB_WAIT_LINK, FB_WAIT_SEGMENT):
                        counts[i] += 1
                taken += 1
                due += every
                while fb_now_ns() < due and not stopped:
                    if fb_event_prepare(&self.stopped) != key:
                        stopped = True
                    else:
                        fb_event_wait(&self.stopped, key, due)
        try:
            return taken, [counts[i] for i in range(n)]
        finally:
            free(looked_at)
            free(counts)
