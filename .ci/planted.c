/* Errors for .ci/sanitize to find before it trusts a run that found none. */
#include <pthread.h>
#include <stdlib.h>

static int counter;

static void *add(void *unused) {
    for (int i = 0; i < 100000; i++) counter++;
    return unused;
}

/* A data race of two threads. */
int plant_thread(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, add, NULL)) return -1;
    add(NULL);
    pthread_join(other, NULL);
    return counter;
}

/* A read one byte beyond a block. */
int plant_address(void) {
    volatile unsigned char *block = calloc(16, 1);
    int beyond = block[16];
    free((void *)block);
    return beyond;
}
