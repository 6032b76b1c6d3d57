/* credit_ledger.pyx: a sender takes, a receiver grants, a third one looks at all counters of one moment. */
#include "fastbuf/flow/credit_ledger.c"

#include "checker.h"

#define LEDGER(name) __pyx_f_7fastbuf_4flow_13credit_ledger_12CreditLedger_##name
#define FLOW(name) __pyx_f_7fastbuf_4flow_13credit_ledger_##name
#ifndef CHANNELS
#define CHANNELS 1
#endif
#ifndef LOOKS
#define LOOKS 1 /* whether there is one who looks */
#endif
#ifndef TAKES
#define TAKES 2
#endif

const int scenario_threads = 2 * CHANNELS + LOOKS;
enum { EXCLUSIVE = 1, FLOATING = 1 };

typedef struct __pyx_obj_7fastbuf_4flow_13credit_ledger_CreditLedger Ledger;
typedef struct __pyx_t_7fastbuf_4flow_13credit_ledger_CreditRow Row;
typedef struct __pyx_t_7fastbuf_4flow_13credit_ledger_CreditFigures Figures;

static Ledger ledger;
static struct __pyx_vtabstruct_7fastbuf_4flow_13credit_ledger_CreditLedger table;
static Row rows[CHANNELS];
static int64_t taken[CHANNELS], granted[CHANNELS];

void scenario_setup(void) {
    memset(&ledger, 0, sizeof ledger);
    memset(rows, 0, sizeof rows);
    table.share = LEDGER(share);
    table.grant = LEDGER(grant);
    table.use = LEDGER(use);
    table.snapshot = LEDGER(snapshot);
    ledger.__pyx_vtab = &table;
    ledger.rows = rows;
    ledger.channels = CHANNELS;
    ledger.exclusive = EXCLUSIVE;
    ledger.floating = FLOATING;
    for (int i = 0; i < CHANNELS; i++) {
        FLOW(credit_init)(&rows[i], EXCLUSIVE);
        FLOW(credit_announce)(&rows[i], EXCLUSIVE, 0);
        taken[i] = 0;
        granted[i] = EXCLUSIVE;
    }
}

static void right(const Figures *f) {
    check_that(FLOW(credit_holds)((Figures *)f), "announced is not used + available, or more than was set aside for");
    int64_t above = f->available - f->exclusive;
    check_that(f->floating == (above > 0 ? above : 0), "floating segments that do not fit what is available");
    check_that(f->floating <= FLOATING, "more floating segments than there are");
}

void scenario_thread(int thread) {
    if (thread >= 2 * CHANNELS) {
        Figures f[CHANNELS];
        if (LEDGER(snapshot)(&ledger, f)) {
            int64_t out = 0;
            for (int i = 0; i < CHANNELS; i++) {
                right(&f[i]);
                out += f[i].floating;
            }
            check_that(out <= FLOATING, "channels hold more floating segments than there are");
        }
        return;
    }
    int channel = thread / 2;
    if (thread % 2 == 0)
        for (int k = 0; k < TAKES; k++) taken[channel] += LEDGER(use)(&ledger, &rows[channel]);
    else {
        granted[channel] += LEDGER(grant)(&ledger, &rows[channel], 2);
        granted[channel] += LEDGER(grant)(&ledger, &rows[channel], 1);
    }
}

void scenario_check(void) {
    Figures f[CHANNELS];
    int64_t out = 0;
    check_that(LEDGER(snapshot)(&ledger, f), "nothing is under way, and it looks as if");
    for (int i = 0; i < CHANNELS; i++) {
        right(&f[i]);
        check_that(f[i].used == taken[i], "a credit was used twice, or lost");
        check_that(f[i].announced == granted[i], "other credits than were granted");
        out += f[i].floating;
    }
    check_that(fb_i64_load_relaxed(&ledger.floating_out) == out, "a floating segment is lost, or claimed by nobody");
}
