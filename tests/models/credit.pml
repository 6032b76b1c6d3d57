/* The credit protocol in Promela, for SPIN: two producers, two consumers, exclusive and floating segments, cancel, death.
 *
 * A second look by another tool, written from the protocol's description and not from the code: credit_model.py is the
 * one that transcribes the code, with more of its rules (recall, limits that move, channels without a segment).
 *
 * Producer p writes PLAN[2 g + p] buffers for consumer g, in any order, at most BOUND queued on a channel (0: there is no
 * such channel).  Consumer g has EXCLUSIVE segments for each channel and FLOATING that its channels borrow against the
 * sender's backlog.  Each participant is a process; the wires are in order and lossless.
 *
 *   F1  overflow: a buffer comes and no segment waits for it, or more than BOUND are queued
 *   F2  a segment lost or made: ready, with the reader or floating at home, they are as many as there were
 *   F3  credit lost or made: what a receiver granted is with the sender, on a wire, or not announced yet
 *   F6  a buffer out of order, lost or twice
 *   F7  nobody can move and somebody has not ended (an invalid end state); an end without all buffers, where nobody
 *       died or had enough; a segment out at the end
 *
 * Settings, by -D: CANCELS (consumer 0 has enough, at any moment), PRODUCER_DIES, CONSUMER_DIES (number 0, at any moment;
 * what was on its wires still comes), PLAN, EXCLUSIVE, FLOATING, BOUND.  WITHOUT leaves one rule out: it must be found.
 */
#ifndef PLAN
#define PLAN 1, 1, 1, 1
#endif
#ifndef EXCLUSIVE
#define EXCLUSIVE 1
#endif
#ifndef FLOATING
#define FLOATING 1
#endif
#ifndef BOUND
#define BOUND 2
#endif
#define NO_CREDIT_ASKED 1       /* F1: it sends without credit */
#define KEEPS_FLOATING 2        /* F7: a floating segment that is released does not go back to the gate */
#define CREDIT_TWICE 3          /* F3: a release is announced twice */
#define NO_WORD_OF_DEATH 4      /* F7: the end of a connection is not heard */
#define CANCEL_FORGETS 5        /* F2: a cancel does not give back what waits for data */
#ifndef WITHOUT
#define WITHOUT 0
#endif

#define ID(g, p) ((g) * 2 + (p))

mtype = { DATA, END, CREDIT, DONE, CANCEL, GONE };
chan there[4] = [4] of { mtype, byte, byte };   /* kind, sequence, backlog */
chan back[4] = [4] of { mtype, byte };          /* kind, credits */

/* the sender's half of channel ID(g, p) */
byte plan[4] = { PLAN };
byte left[4], queued[4], credit[4], sent[4];
bool said_end[4], sub_closed[4];
/* on the wires, for F3 */
byte flying[4], told[4];
/* the receiver's */
byte ready[4], with_reader[4], lent[4], granted[4], unannounced[4], backlog[4], received[4];
bool over[4];                                   /* has ended, or was given up */
byte floating_home[2];
bool ended_well[4];
bool died, cancelled, p_failed[2], g_failed[2];

inline conserved(g, p) {
    assert(queued[ID(g, p)] <= BOUND);                                                                          /* F1 */
    assert(over[ID(g, p)] || sub_closed[ID(g, p)] ||
        granted[ID(g, p)] == credit[ID(g, p)] + flying[ID(g, p)] + told[ID(g, p)] + unannounced[ID(g, p)]);     /* F3 */
    assert(over[ID(g, p)] || ready[ID(g, p)] + with_reader[ID(g, p)] == EXCLUSIVE + lent[ID(g, p)]);            /* F2 */
    assert(floating_home[g] + lent[ID(g, 0)] + lent[ID(g, 1)] == FLOATING);                                     /* F2 */
}

inline grant(i) {
    ready[i]++; granted[i]++; unannounced[i]++
#if WITHOUT == CREDIT_TWICE
    ; unannounced[i]++
#endif
}

/* Floating segments for who waits, as long as its backlog is more than what it has ready. */
inline serve(g) {
    do
    :: floating_home[g] > 0 && !over[ID(g, 0)] && ready[ID(g, 0)] < backlog[ID(g, 0)] + EXCLUSIVE ->
        floating_home[g]--; lent[ID(g, 0)]++; grant(ID(g, 0))
    :: floating_home[g] > 0 && !over[ID(g, 1)] && ready[ID(g, 1)] < backlog[ID(g, 1)] + EXCLUSIVE ->
        floating_home[g]--; lent[ID(g, 1)]++; grant(ID(g, 1))
    :: else -> break
    od
}

/* The reader is done with a buffer: what was borrowed goes back to the gate, the channel's own is credit again. */
inline release(g, i) {
    with_reader[i]--;
    if
    :: lent[i] > 0 ->
        lent[i]--
#if WITHOUT == KEEPS_FLOATING
#else
        ; floating_home[g]++
#endif
    :: else ->
        if
        :: over[i] -> skip
        :: else -> grant(i)
        fi
    fi;
    serve(g)
}

/* The channel has ended or was given up: what waits for data goes home. */
inline give_up(g, i) {
    over[i] = true;
#if WITHOUT == CANCEL_FORGETS
#else
    do
    :: ready[i] > 0 ->
        ready[i]--;
        if
        :: lent[i] > 0 -> lent[i]--; floating_home[g]++
        :: else -> skip
        fi
    :: else -> break
    od;
#endif
    granted[i] = 0; unannounced[i] = 0;
    serve(g)
}

/* The consumer closes: its reader lets go, what had come is dropped, and every sender is told. */
inline gate_close(g, word) {
    k = 0;
    do
    :: k < 2 ->
        do
        :: with_reader[ID(g, k)] > 0 -> release(g, ID(g, k))
        :: else -> break
        od;
        if
        :: !over[ID(g, k)] -> give_up(g, ID(g, k)); back[ID(g, k)]!word, 0
        :: else -> skip
        fi;
        k++
    :: else -> break
    od;
    k = 0
}

#define may_send(i) (!sub_closed[i] && queued[i] > 0 && (credit[i] > 0 || WITHOUT == NO_CREDIT_ASKED))
#define may_end(i) (!sub_closed[i] && !said_end[i] && left[i] == 0 && queued[i] == 0)

inline send(i) {
    queued[i]--; flying[i]++;
    if
    :: credit[i] > 0 -> credit[i]--
    :: else -> skip
    fi;
    there[i]!DATA, sent[i], queued[i]; sent[i]++
}

inline announce(i) {
    n = unannounced[i]; unannounced[i] = 0; told[i] = told[i] + n;
    back[i]!CREDIT, n; n = 0
}

inline sub_close(i) {
    sub_closed[i] = true; queued[i] = 0; left[i] = 0; credit[i] = 0
}

inline hear_back(i) {
    if
    :: sub_closed[i] -> skip
    :: !sub_closed[i] && word == CREDIT -> told[i] = told[i] - n; credit[i] = credit[i] + n
    :: !sub_closed[i] && (word == DONE || word == CANCEL) -> sub_close(i)
    :: !sub_closed[i] && word == GONE ->
#if WITHOUT == NO_WORD_OF_DEATH
        skip
#else
        sub_close(i); p_failed[p] = true
#endif
    fi;
    n = 0; i = 0
}

inline hear_there(g, i) {
    if
    :: over[i] -> skip
    :: !over[i] && word == DATA ->
        assert(sequence == received[i]);                                                                        /* F6 */
        assert(ready[i] > 0);                                                                                   /* F1 */
        flying[i]--; ready[i]--; granted[i]--; with_reader[i]++; received[i]++;
        backlog[i] = behind;
        serve(g)
    :: !over[i] && word == END ->
        assert(received[i] == plan[i]);                                                                            /* F6 */
        ended_well[i] = true; give_up(g, i); back[i]!DONE, 0
    :: !over[i] && word == GONE -> give_up(g, i); g_failed[g] = true
    fi;
    sequence = 0; behind = 0; i = 0
}

proctype Producer(byte p) {
    byte i, n;
    mtype word;
    do
    /* the writer */
    :: atomic { left[ID(0, p)] > 0 && queued[ID(0, p)] < BOUND -> left[ID(0, p)]--; queued[ID(0, p)]++; conserved(0, p) }
    :: atomic { left[ID(1, p)] > 0 && queued[ID(1, p)] < BOUND -> left[ID(1, p)]--; queued[ID(1, p)]++; conserved(1, p) }
    /* the sender: who has no credit blocks no other channel */
    :: atomic { may_send(ID(0, p)) -> i = ID(0, p); send(i); conserved(0, p) }
    :: atomic { may_send(ID(1, p)) -> i = ID(1, p); send(i); conserved(1, p) }
    :: atomic { may_end(ID(0, p)) -> i = ID(0, p); said_end[i] = true; there[i]!END, 0, 0 }
    :: atomic { may_end(ID(1, p)) -> i = ID(1, p); said_end[i] = true; there[i]!END, 0, 0 }
    /* what comes back */
    :: atomic { back[ID(0, p)]?word, n -> i = ID(0, p); hear_back(i); conserved(0, p) }
    :: atomic { back[ID(1, p)]?word, n -> i = ID(1, p); hear_back(i); conserved(1, p) }
    :: atomic { p_failed[p] ->
        if
        :: !sub_closed[ID(0, p)] -> there[ID(0, p)]!GONE, 0, 0; sub_close(ID(0, p))
        :: else -> skip
        fi;
        if
        :: !sub_closed[ID(1, p)] -> there[ID(1, p)]!GONE, 0, 0; sub_close(ID(1, p))
        :: else -> skip
        fi;
        break }
#ifdef PRODUCER_DIES
    :: atomic { p == 0 && !died && !(sub_closed[ID(0, 0)] && sub_closed[ID(1, 0)]) -> died = true; p_failed[0] = true }
#endif
    :: sub_closed[ID(0, p)] && sub_closed[ID(1, p)] && !p_failed[p] -> break
    od
}

proctype Consumer(byte g) {
    byte i, k, n, sequence, behind;
    mtype word;
    do
    :: atomic { there[ID(g, 0)]?word, sequence, behind -> i = ID(g, 0); hear_there(g, i); conserved(g, 0); conserved(g, 1) }
    :: atomic { there[ID(g, 1)]?word, sequence, behind -> i = ID(g, 1); hear_there(g, i); conserved(g, 0); conserved(g, 1) }
    :: atomic { unannounced[ID(g, 0)] > 0 -> i = ID(g, 0); announce(i); conserved(g, 0) }
    :: atomic { unannounced[ID(g, 1)] > 0 -> i = ID(g, 1); announce(i); conserved(g, 1) }
    /* the reader is done with a buffer, some time after it came */
    :: atomic { with_reader[ID(g, 0)] > 0 -> release(g, ID(g, 0)); conserved(g, 0); conserved(g, 1) }
    :: atomic { with_reader[ID(g, 1)] > 0 -> release(g, ID(g, 1)); conserved(g, 0); conserved(g, 1) }
    :: atomic { g_failed[g] -> gate_close(g, GONE); break }
#ifdef CANCELS
    :: atomic { g == 0 && !cancelled && !(over[ID(0, 0)] && over[ID(0, 1)]) -> cancelled = true; gate_close(0, CANCEL); break }
#endif
#ifdef CONSUMER_DIES
    :: atomic { g == 0 && !died && !(over[ID(0, 0)] && over[ID(0, 1)]) -> died = true; g_failed[0] = true }
#endif
    :: atomic { over[ID(g, 0)] && over[ID(g, 1)] && with_reader[ID(g, 0)] + with_reader[ID(g, 1)] == 0 && !g_failed[g] -> break }
    od;
    /* Every segment is home. */
    assert(ready[ID(g, 0)] + with_reader[ID(g, 0)] + ready[ID(g, 1)] + with_reader[ID(g, 1)] == 0);             /* F7 */
    assert(floating_home[g] == FLOATING);                                                                       /* F7 */
    assert(died || cancelled || (ended_well[ID(g, 0)] && ended_well[ID(g, 1)]))                                 /* F7 */
}

init {
    byte i, n;
    atomic {
        floating_home[0] = FLOATING; floating_home[1] = FLOATING;
        for (i : 0 .. 3) {
            left[i] = plan[i];
            if
            :: plan[i] == 0 -> over[i] = true; sub_closed[i] = true; ended_well[i] = true
            :: else -> for (n : 1 .. EXCLUSIVE) { grant(i) }
            fi
        }
        i = 0; n = 0;
        run Producer(0); run Producer(1); run Consumer(0); run Consumer(1)
    }
}
