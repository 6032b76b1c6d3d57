/* Which version of a kernel runs: AVX-512 or AVX2 if it exists and the processor has it, else the plain one. */
#ifndef FB_CPU_H
#define FB_CPU_H

enum fb_way { FB_PLAIN, FB_WITH_AVX2, FB_WITH_AVX512 };

/* Tests set it lower in a module with kernels; otherwise hardly any machine would run the other versions. In a
 * module that never sets it, the compiler treats it as a constant. */
__attribute__((unused)) static int fb_best_way = FB_WITH_AVX512;

static inline int fb_has_avx2(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && fb_best_way >= FB_WITH_AVX2;
#else
    return 0;
#endif
}

/* Requires VBMI2: processors with AVX-512 but without VBMI2 lower their clock for multiplications of 64 bytes. */
static inline int fb_has_avx512(void) {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && fb_best_way >= FB_WITH_AVX512;
#else
    return 0;
#endif
}

#endif
