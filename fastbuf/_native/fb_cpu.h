/* Which of two ways a kernel takes: the one for AVX2 where the processor has it, else the plain one. */
#ifndef FB_CPU_H
#define FB_CPU_H

/* Tests set it in a module that has kernels, since hardly any machine would take the plain way otherwise. A module that
 * sets it nowhere has a constant here, which the compiler leaves out. */
static int fb_plain_only;

static inline int fb_has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && !fb_plain_only;
#else
    return fb_plain_only & 0;
#endif
}

#endif
