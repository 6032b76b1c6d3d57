/* The parts of the shared ring's scenario: each is the C that Cython made of one module, with its own names for the same
 * structures, so what one part needs of another goes by functions. */
#ifndef SHARED_RING_H
#define SHARED_RING_H

#include <stddef.h>
#include <stdint.h>

#include "fb_event.h"

extern fb_event *writer_event;              /* of the writer's doorbell */
extern uint8_t segments[][8];

/* shared_ring_bell.c */
extern void (*const ring_bell)(void *bell, fb_au32 *fd);
extern const size_t bell_size;

/* shared_ring_queue.c */
extern void *const queue;                   /* Subpartition */
extern void (*const queue_close)(void *queue, int cancelled);
extern void (*const queue_forget)(void *queue);
void queue_setup(uint32_t bound, void *lender, void (*notify)(void *), int (*recycle)(void *pool, int32_t segment));
int queue_has_room(void);
void queue_wait_for_any(void);
void queue_begin(int32_t segment);
void queue_commit(uint32_t position);
void queue_finish(void);
void queue_finish_in_a_row(void);           /* another one follows at once */
void queue_flush(void);
void queue_end(void);
int queue_closed(void);
void queue_discard(void);                   /* as a writer whose reader is gone */
uint32_t queue_slots(void);
void queue_allow_drops(void *ends, uint8_t *(*data_of)(void *pool, int32_t segment));
uint32_t queue_unread(void);
void queue_drop_oldest(uint32_t keep, uint64_t *records);

/* shared_ring_lender.c */
extern void *const lender;
extern void (*const lender_told)(void *lender);
void lender_setup(void *block, uint8_t *events, uint32_t slots, void *reader_bell, fb_au32 *abort_asked,
                  int (*recycle)(void *pool, int32_t segment));
void lender_take_home(void);
void lender_lost(void);                     /* as SharedWriter.lost: the reader's process is dead */
void lender_give_up(void);                  /* as SharedWriter.release and _revoke of a partition that was aborted */
size_t block_size(uint32_t slots);
void *lender_ends(void *block);

#endif
