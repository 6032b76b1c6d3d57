/* Makes an ArrowArray of the parts of a parsed payload in place: only offsets of large kinds are copied, since they
 * have 32 bits in a chunk and 64 in Arrow.
 *
 * Lifetime: every array of the tree holds a reference to one fb_place, and the last one released frees the bytes
 * that all of them point into. Consumers may release on any thread, and may have moved children out before. */
#ifndef FB_PLACE_H
#define FB_PLACE_H

#include <stdatomic.h>

#include "fb_append.h"

typedef struct fb_place {
    atomic_long refs;                       /* arrays not yet released */
    void (*drop)(struct fb_place *);        /* frees the bytes; called by the last release, before the place is freed */
    void *owner;                            /* for drop: the owner of the bytes */
    struct ArrowArray *arrays;              /* one per node; that of node 0 is returned by value */
    struct ArrowArray **children;           /* what the arrays' `children` point to */
    const void **buffers;                   /* three for each node */
    int64_t *wide;                          /* offsets of the large kinds, one node after the other */
} fb_place;

static inline void fb_place_release(fb_place *p) {
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_release) != 1) return;
    /* Reads of the bytes by other threads happen before the bytes are freed. */
    atomic_thread_fence(memory_order_acquire);
    p->drop(p);
    free(p);
}

static void fb_release_placed(struct ArrowArray *a) {
    fb_place *p = (fb_place *)a->private_data;
    for (int64_t i = 0; i < a->n_children; i++)
        if (a->children[i]->release) a->children[i]->release(a->children[i]);
    a->release = NULL;
    fb_place_release(p);
}

/* An array without rows has no data but still needs one offset. */
static const int64_t fb_no_rows = 0;

static int64_t fb_nulls_of(const fb_node *t, const fb_piece *p) {
    if (t->kind == FB_NULL) return p->rows;
    return p->validity ? p->rows - fb_count_bits(p->validity, 0, p->rows) : 0;
}

/* Widens a piece's offsets into *free_from, and advances it. */
static const void *fb_wide_offsets(const fb_piece *p, int64_t **free_from) {
    int64_t *wide = *free_from;
    fb_widen_offsets(wide, p->body, p->rows + 1, 0);
    *free_from = wide + p->rows + 1;
    return wide;
}

static void fb_fill_place(const fb_assembly *s, fb_place *place) {
    struct ArrowArray **children = place->children;
    int64_t *wide = place->wide;
    for (int k = 0; k < s->n_nodes; k++) {
        const fb_node *t = &s->nodes[k];
        const fb_piece *p = &s->pieces[k];
        struct ArrowArray *a = &place->arrays[k];
        const void **buffers = place->buffers + 3 * k;
        int large = t->kind == FB_VAR64 || t->kind == FB_LIST64;
        buffers[0] = p->validity;
        buffers[1] = p->body;
        buffers[2] = p->bytes;
        if (t->kind >= FB_VAR32 && t->kind <= FB_LIST64)
            buffers[1] = !p->rows ? (const void *)&fb_no_rows : large ? fb_wide_offsets(p, &wide) : p->body;
        a->length = p->rows;
        a->null_count = fb_nulls_of(t, p);
        a->n_buffers = fb_buffers_of[t->kind];
        a->buffers = buffers;
        a->children = children;
        a->private_data = place;
        a->release = fb_release_placed;
        for (int c = k + 1; c < t->next; c = s->nodes[c].next, a->n_children++) *children++ = &place->arrays[c];
    }
}

/* After fb_parse: makes *a of its pieces. `drop` is called once, when nothing points into the payload any more;
 * after a result of -1 (no memory) it is not called. */
static int fb_take_place(const fb_assembly *s, void (*drop)(fb_place *), void *owner, struct ArrowArray *a) {
    size_t n = (size_t)s->n_nodes, wide = 0;
    for (size_t k = 0; k < n; k++)
        if ((s->nodes[k].kind == FB_VAR64 || s->nodes[k].kind == FB_LIST64) && s->pieces[k].rows)
            wide += (size_t)s->pieces[k].rows + 1;
    size_t head = sizeof(fb_place), each = sizeof(struct ArrowArray) + sizeof(struct ArrowArray *) + 3 * sizeof(void *);
    fb_place *place = (fb_place *)malloc(head + n * each + wide * sizeof(int64_t));
    if (!place) return -1;
    memset(place, 0, head + n * each);
    atomic_init(&place->refs, (long)n);
    place->drop = drop;
    place->owner = owner;
    place->arrays = (struct ArrowArray *)(place + 1);
    place->children = (struct ArrowArray **)(place->arrays + n);
    place->buffers = (const void **)(place->children + n);
    place->wide = (int64_t *)(place->buffers + 3 * n);
    fb_fill_place(s, place);
    *a = place->arrays[0];
    return 0;
}

#endif
