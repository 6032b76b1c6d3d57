# The few functions of POSIX threads that the exchange needs.
cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_attr_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *m, const void *attr)
    int pthread_mutex_destroy(pthread_mutex_t *m)
    int pthread_mutex_lock(pthread_mutex_t *m)
    int pthread_mutex_trylock(pthread_mutex_t *m)
    int pthread_mutex_unlock(pthread_mutex_t *m)
    int pthread_attr_init(pthread_attr_t *a)
    int pthread_attr_destroy(pthread_attr_t *a)
    int pthread_attr_setstacksize(pthread_attr_t *a, size_t n)
    int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *) noexcept nogil, void *arg)
    int pthread_join(pthread_t t, void **result)

cdef extern from "<sys/prctl.h>" nogil:
    enum:
        PR_SET_NAME                 # sets the calling thread's name in the kernel: 15 bytes
    int prctl(int what, const char *name, unsigned long a, unsigned long b, unsigned long c)
