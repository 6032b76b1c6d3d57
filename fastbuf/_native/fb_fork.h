/* Counts the forks between a process and the moment its module was imported.
 *
 * A pool's free lists are ordinary memory: after fork() parent and child each have them, and with a memfd arena both would
 * hand out the same segment.  A pool remembers the count it was made under; in a child the count differs.  pthread_atfork
 * catches every fork() of the process, not only os.fork; a look costs one load, getpid() a system call.
 */
#ifndef FB_FORK_H
#define FB_FORK_H

#include <pthread.h>
#include <stdint.h>

static uint32_t fb_forks; /* written in the child alone, while it has one thread */

static void fb_fork_child(void) { fb_forks++; }

static inline int fb_fork_watch(void) { return pthread_atfork(NULL, NULL, fb_fork_child); }

static inline uint32_t fb_fork_count(void) { return fb_forks; }

#endif
