/* Part of pool.c: claims and limits. */
#include "fastbuf/memory/pool_claims.c"

#include "pool.h"

#define CLAIMS(name) __pyx_f_7fastbuf_6memory_11pool_claims_##name
#define WAKING(name) __pyx_f_7fastbuf_6memory_11pool_waking_##name

void *const pool_take_global = CLAIMS(take_global), *const pool_trim = CLAIMS(trim);
void *const pool_note_peak = CLAIMS(note_peak), *const pool_figures = CLAIMS(local_figures);
void *const pool_set_limit = CLAIMS(local_set_limit), *const pool_destroy = CLAIMS(local_destroy);

void claims_setup(void) {
    *(void **)&WAKING(wake) = pool_wake;
    *(void **)&WAKING(pool_wake_waiting) = pool_wake_all;
}
