/* Counts the forks of the process since its module was imported.
 *
 * A pool's free lists are ordinary memory: after fork() parent and child each have a copy, and with a memfd arena both
 * would hand out the same segment.  A pool stores the count at its creation; in a child the count differs.
 * pthread_atfork catches every fork() of the process, not only os.fork; reading the count is one load, while getpid()
 * is a system call.
 */
#ifndef FB_FORK_H
#define FB_FORK_H

#include <pthread.h>
#include <stdint.h>

static uint32_t fb_forks; /* written only in the child, while it has one thread */

static void fb_fork_child(void) { fb_forks++; }

static inline int fb_fork_watch(void) { return pthread_atfork(NULL, NULL, fb_fork_child); }

static inline uint32_t fb_fork_count(void) { return fb_forks; }

#endif
