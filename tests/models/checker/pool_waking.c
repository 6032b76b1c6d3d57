/* Part of pool.c: waiting and wake-ups. */
#include "fastbuf/memory/pool_waking.c"

#include "pool.h"

#define WAKING(name) __pyx_f_7fastbuf_6memory_11pool_waking_##name

void *const pool_arm = WAKING(arm), *const pool_wake = WAKING(wake), *const pool_wake_all = WAKING(pool_wake_waiting);
