/* Mappings for arenas: anonymous, or of a memfd that other processes can map too. */
#ifndef FB_MAP_H
#define FB_MAP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 0x0001U
#endif
#ifndef MFD_ALLOW_SEALING
#define MFD_ALLOW_SEALING 0x0002U
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14 */
#define MADV_KEEPONFORK 19
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* Makes a memfd of that length which nobody can shrink: if a peer truncated it, reads here would raise SIGBUS. -1
 * with errno set. */
static inline int fb_memfd(const char *name, size_t length) {
    int fd = (int)syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)length) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        int keep = errno;
        close(fd);
        errno = keep;
        return -1;
    }
    return fd;
}

/* fd < 0: anonymous.  NULL with errno set. */
static inline void *fb_map(size_t length, int fd) {
    void *p = mmap(NULL, length, PROT_READ | PROT_WRITE,
                   fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Maps another process's memfd. */
static inline void *fb_map_shared(size_t length, int fd, int writable) {
    void *p = mmap(NULL, length, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static inline int fb_unmap(void *p, size_t length) { return munmap(p, length); }

/* Advice only; returns 0 or errno.  Kernels without huge pages return EINVAL. */
static inline int fb_advise_huge(void *p, size_t length) {
    return madvise(p, length, MADV_HUGEPAGE) == 0 ? 0 : errno;
}

/* Whether a forked child finds zeros in this private memory, or a copy; returns 0 or errno.
 *
 * With a copy the kernel copies each page that the parent writes to while the child lives: twice the memory. Zeros and
 * not MADV_DONTFORK, after which a stray access in the child would be a SIGSEGV. */
static inline int fb_wipe_on_fork(void *p, size_t length, int wipe) {
    return madvise(p, length, wipe ? MADV_WIPEONFORK : MADV_KEEPONFORK) == 0 ? 0 : errno;
}

/* Makes every page present and writable; returns 0 or errno.  Before Linux 5.14 it writes to each page instead. */
static inline int fb_populate(void *p, size_t length) {
    if (madvise(p, length, MADV_POPULATE_WRITE) == 0) return 0;
    if (errno != EINVAL) return errno;
    long page = sysconf(_SC_PAGESIZE);
    for (size_t k = 0; k < length; k += (size_t)page) ((volatile uint8_t *)p)[k] = 0;
    return 0;
}

#endif
