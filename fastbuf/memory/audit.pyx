"""The audit finds out from the lists where each segment is, and compares that with the counters."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastbuf._native.atomics cimport fb_i64_load_seq_cst, fb_u32_load_seq_cst, fb_u64_load_seq_cst
from fastbuf.memory.debug_checks cimport POOL_DEBUG, debug_guard_intact, debug_poison_intact
from fastbuf.memory.pool_core cimport local_destroyed
from fastbuf.memory.pool_types cimport FreeList, LocalCore, PoolCore


cdef walk(PoolCore *g, FreeList *stack, str where, list places, list faults):
    # Walks a list, records `where` for each segment on it, and returns their number.
    cdef uint64_t link
    cdef uint32_t at = <uint32_t>fb_u64_load_seq_cst(&stack.head)
    cdef int64_t length = 0
    cdef int64_t expected = -1
    while at != 0:
        if at > g.count:
            faults.append(f"{where} has the number {at - 1}, and there are {g.count} segments")
            break
        if length > g.count:
            faults.append(f"{where} is circular")
            break
        link = fb_u64_load_seq_cst(&g.meta[at - 1].link)
        if expected >= 0 and <int64_t>(link >> 32) != expected:
            faults.append(f"{where} says depth {link >> 32} at segment {at - 1}, where {expected} was due")
        places[at - 1].append(where)
        expected = <int64_t>(link >> 32) - 1
        at = <uint32_t>link
        length += 1
    if expected > 0:
        faults.append(f"{where} ends {expected} early")
    return length


cdef list pool_faults(PoolCore *g, bint mapped):
    cdef list faults = []
    cdef list places = [[] for _ in range(g.count)]
    cdef LocalCore *p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
    cdef uint64_t word
    cdef uint32_t k, refs
    cdef dict out = {}              # address of the LocalCore -> its segments in use
    cdef dict names = {}            # address -> name
    cdef int64_t unmet = 0
    cdef int64_t limits = 0
    cdef int64_t waiting = 0
    cdef int64_t number = 0
    cdef int64_t global_free, free, held, spare
    global_free = walk(g, &g.free, "the global list", places, faults)
    while p != NULL:
        names[<size_t>p] = f"local pool {number}"
        out[<size_t>p] = 0
        number += 1
        p = p.following
    for k in range(g.count):
        refs = fb_u32_load_seq_cst(&g.meta[k].refs)
        if refs:
            if <size_t>g.meta[k].owner not in names:
                faults.append(f"segment {k} is out, but no pool counts it")
            else:
                out[<size_t>g.meta[k].owner] += 1
    p = <LocalCore *><size_t>fb_u64_load_seq_cst(&g.locals)
    while p != NULL:
        name = names[<size_t>p]
        free = walk(g, &p.free, name, places, faults)
        word = fb_u64_load_seq_cst(&p.word)
        held = <uint32_t>word
        if (word >> 32) & 0x7FFFFFFF:
            faults.append(f"{name} has {(word >> 32) & 0x7FFFFFFF} claims in flight")
        if held != free + out[<size_t>p]:
            faults.append(f"{name} counts {held} segments held, but has {free} free and {out[<size_t>p]} out")
        if fb_u32_load_seq_cst(&p.listener_pins):
            faults.append(f"{name} has its listener pinned")
        waiting += fb_u32_load_seq_cst(&p.waiting)
        if local_destroyed(p):
            if free or fb_u32_load_seq_cst(&p.limit):
                faults.append(f"{name} is destroyed, but has {free} free and limit {fb_u32_load_seq_cst(&p.limit)}")
        else:
            limits += fb_u32_load_seq_cst(&p.limit)
            unmet += max(0, <int64_t>p.required - held)
            if not p.required <= fb_u32_load_seq_cst(&p.limit) <= p.maximum:
                faults.append(
                    f"{name} has limit {fb_u32_load_seq_cst(&p.limit)}, required {p.required}, maximum {p.maximum}"
                )
        p = p.following
    for k in range(g.count):
        refs = fb_u32_load_seq_cst(&g.meta[k].refs)
        if refs and places[k]:
            faults.append(f"segment {k} is out with {refs} references, and also on {' and '.join(places[k])}")
        elif not refs and len(places[k]) != 1:
            faults.append(f"segment {k} is home, but on {' and '.join(places[k]) or 'no list'}")
    if POOL_DEBUG and mapped:
        for k in range(g.count):
            if not debug_guard_intact(g, k):
                faults.append(f"segment {k} was written to beyond its end")
            if not fb_u32_load_seq_cst(&g.meta[k].refs) and not debug_poison_intact(g, k):
                faults.append(f"segment {k} was written to after it was recycled")
    spare = fb_i64_load_seq_cst(&g.spare)
    if spare != global_free - unmet:
        faults.append(f"spare is {spare}, but {global_free} are free and {unmet} of them guaranteed")
    if limits > g.count:
        faults.append(f"the limits sum up to {limits} of {g.count} segments")
    if fb_u32_load_seq_cst(&g.waiting) != waiting:
        faults.append(f"{waiting} pools wait for a segment, but {fb_u32_load_seq_cst(&g.waiting)} are counted")
    return faults
