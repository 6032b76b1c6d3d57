/* What the parts of the scenario pool know of each other.  Each includes another module's C. */
#ifndef POOL_H
#define POOL_H

void claims_setup(void);                /* gives the module the functions of the others that it calls */

extern void *const pool_take_global, *const pool_trim, *const pool_note_peak, *const pool_figures;      /* pool_claims */
extern void *const pool_set_limit, *const pool_destroy;
extern void *const pool_arm, *const pool_wake, *const pool_wake_all;                                    /* pool_waking */

#endif
