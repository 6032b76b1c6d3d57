/* failure.pyx: two fail at once, a third reads the text of whoever was first. */
#include "fastbuf/exchange/failure.c"

#include "checker.h"

#define CELL(name) __pyx_f_7fastbuf_8exchange_7failure_##name

const int scenario_threads = 3;

static struct __pyx_t_7fastbuf_8exchange_7failure_Failure cell;
static fb_au32 asked; /* as abort_asked: stored by one who has set a failure */
static int first[2];

void scenario_setup(void) {
    CELL(failure_init)(&cell);
    fb_u32_init(&asked, 0);
    first[0] = first[1] = 0;
}

static void read_it(int code) {
    check_that(code == 1 || code == 2, "there is no such failure");
    check_that(cell.text[0] == '0' + code, "the text of another failure");
}

void scenario_thread(int thread) {
    if (thread < 2) {
        const char *text = thread == 0 ? "1st" : "2nd";
        first[thread] = CELL(failure_set)(&cell, thread + 1, text, 3);
        read_it(CELL(failure_code)(&cell));
        fb_u32_store_release(&asked, 1);
        return;
    }
    int told = fb_u32_load_acquire(&asked) != 0;
    int code = CELL(failure_code)(&cell);
    check_that(!told || code != 0, "told of a failure, and there is none");
    if (code != 0) read_it(code);
}

void scenario_check(void) { check_that(first[0] + first[1] == 1, "both were first, or nobody"); }
