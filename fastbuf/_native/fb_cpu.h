/* Which way a kernel takes: the one for AVX-512 or AVX2 where there is one and the processor has it, else the plain one. */
#ifndef FB_CPU_H
#define FB_CPU_H

enum fb_way { FB_PLAIN, FB_WITH_AVX2, FB_WITH_AVX512 };

/* Tests set it lower in a module that has kernels, since hardly any machine would take the other ways otherwise. A module
 * that sets it nowhere has a constant here, which the compiler leaves out. */
__attribute__((unused)) static int fb_best_way = FB_WITH_AVX512;

static inline int fb_has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && fb_best_way >= FB_WITH_AVX2;
#else
    return 0;
#endif
}

/* Only with VBMI2: processors that have AVX-512 without it run at a lower clock while they multiply 64 bytes at once. */
static inline int fb_has_avx512(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && fb_best_way >= FB_WITH_AVX512;
#else
    return 0;
#endif
}

#endif
