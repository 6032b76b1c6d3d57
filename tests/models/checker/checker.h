/* What a scenario gives the checker, and what the checker gives it (algorithm: checker.c). */
#ifndef CHECKER_H
#define CHECKER_H

#include <stdint.h>

/* The scenario. */
extern const int scenario_threads;      /* at most 4 */
void scenario_setup(void);              /* before each execution: all memory as it begins */
void scenario_thread(int thread);       /* what thread 0, 1, ... does */
void scenario_check(void);              /* after each execution, when all threads have ended */

/* Ends the exploration with the trace of this execution, unless ok. */
void check_that(int ok, const char *text);
/* The thread that may die at any step, as a process that is killed; -1: none.  scenario_setup says which. */
extern int check_mortal;
/* Returns when it has died, or ended: what it did is there, and it will do no more. */
void check_wait_for_the_end_of(int thread);
/* Sleeps until somebody has written to the eventfd since the last time; fd: 0 to 15. */
void check_wait_for_eventfd(int fd);

#endif
