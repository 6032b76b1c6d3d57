/* Part of shared_ring.c: the doorbells. */
#include "fastbuf/exchange/doorbell.c"

#include "shared_ring.h"

void (*const ring_bell)(void *, fb_au32 *) = (void (*)(void *, fb_au32 *))__pyx_f_7fastbuf_8exchange_8doorbell_bell_ring;
const size_t bell_size = sizeof(struct __pyx_t_7fastbuf_8exchange_8doorbell_Bell);
