# Map of fb_atomic.h and fb_event.h.  Fields of these types are opaque: use the functions.
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from "fb_atomic.h" nogil:
    ctypedef struct fb_au32:
        pass
    ctypedef struct fb_au64:
        pass
    ctypedef struct fb_ai64:
        pass
    ctypedef struct fb_pad:
        pass

    void fb_u32_init(fb_au32 *a, uint32_t x)
    uint32_t fb_u32_load_relaxed(fb_au32 *a)
    uint32_t fb_u32_load_acquire(fb_au32 *a)
    uint32_t fb_u32_load_seq_cst(fb_au32 *a)
    void fb_u32_store_relaxed(fb_au32 *a, uint32_t x)
    void fb_u32_store_release(fb_au32 *a, uint32_t x)
    uint32_t fb_u32_add_relaxed(fb_au32 *a, uint32_t x)
    uint32_t fb_u32_add_acq_rel(fb_au32 *a, uint32_t x)
    uint32_t fb_u32_add_seq_cst(fb_au32 *a, uint32_t x)
    uint32_t fb_u32_sub_acq_rel(fb_au32 *a, uint32_t x)
    uint32_t fb_u32_sub_seq_cst(fb_au32 *a, uint32_t x)
    uint32_t fb_u32_exchange_acq_rel(fb_au32 *a, uint32_t x)
    bint fb_u32_cas_acq_rel(fb_au32 *a, uint32_t *expected, uint32_t x)
    bint fb_u32_cas_seq_cst(fb_au32 *a, uint32_t *expected, uint32_t x)
    bint fb_u32_cas_strong(fb_au32 *a, uint32_t *expected, uint32_t x)

    void fb_u64_init(fb_au64 *a, uint64_t x)
    uint64_t fb_u64_load_relaxed(fb_au64 *a)
    uint64_t fb_u64_load_acquire(fb_au64 *a)
    uint64_t fb_u64_load_seq_cst(fb_au64 *a)
    void fb_u64_store_relaxed(fb_au64 *a, uint64_t x)
    void fb_u64_store_release(fb_au64 *a, uint64_t x)
    uint64_t fb_u64_add_relaxed(fb_au64 *a, uint64_t x)
    uint64_t fb_u64_add_seq_cst(fb_au64 *a, uint64_t x)
    bint fb_u64_cas_acq_rel(fb_au64 *a, uint64_t *expected, uint64_t x)
    bint fb_u64_cas_seq_cst(fb_au64 *a, uint64_t *expected, uint64_t x)

    void fb_i64_init(fb_ai64 *a, int64_t x)
    int64_t fb_i64_load_relaxed(fb_ai64 *a)
    int64_t fb_i64_load_acquire(fb_ai64 *a)
    int64_t fb_i64_load_seq_cst(fb_ai64 *a)
    void fb_i64_store_relaxed(fb_ai64 *a, int64_t x)
    void fb_i64_store_release(fb_ai64 *a, int64_t x)
    int64_t fb_i64_add_acq_rel(fb_ai64 *a, int64_t x)
    int64_t fb_i64_add_seq_cst(fb_ai64 *a, int64_t x)
    int64_t fb_i64_sub_acq_rel(fb_ai64 *a, int64_t x)
    int64_t fb_i64_sub_seq_cst(fb_ai64 *a, int64_t x)
    bint fb_i64_cas_acq_rel(fb_ai64 *a, int64_t *expected, int64_t x)
    bint fb_i64_cas_seq_cst(fb_ai64 *a, int64_t *expected, int64_t x)

    void fb_fence_seq_cst()
    void fb_prefetch_write(const void *p)
    void fb_cpu_relax()


cdef extern from "fb_event.h" nogil:
    ctypedef struct fb_event:
        pass

    int64_t fb_now_ns()
    void fb_event_init(fb_event *e)
    void fb_event_init_shared(fb_event *e)
    uint32_t fb_event_epoch(fb_event *e)
    int fb_event_spin(fb_event *e, uint32_t epoch, int64_t limit_ns)
    uint32_t fb_event_prepare(fb_event *e)
    int fb_event_wait(fb_event *e, uint32_t key, int64_t deadline_ns)
    void fb_event_notify(fb_event *e)
    bint fb_event_asleep(fb_event *e)
    int fb_event_fd()
    void fb_event_signal(int fd)
