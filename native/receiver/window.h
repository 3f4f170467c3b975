/*
 * Which sequence numbers of a flow have arrived.
 *
 * Owns the layout of a flow in memory shared by several workers.
 */
#ifndef UB_WINDOW_H
#define UB_WINDOW_H

#include "datagram.h"

/* One flow; flows follow one another. The counts fill a line of their own, because every run of
 * every worker writes them. */
struct ub_flow_state {
    uint64_t packets;
    uint64_t highest;
    uint64_t source[3]; /* of its first datagram that was echoed, see echo.c; 0: none yet */
    uint64_t reserved[3];
    uint64_t words[]; /* lap << 32 | bitmap; a bitmap of 0 is a word never used, of any lap */
};

/* Consecutive datagrams of one flow that fall into one window word, not yet in the window. */
struct ub_run {
    struct ub_flow_state *state; /* NULL: none */
    uint64_t number;             /* of the word, counted from sequence number 0 */
    uint64_t highest;            /* of the flow when the run began, raised by the run */
    uint32_t seen;
    uint32_t others;   /* those of `seen` that have not the usual length */
    uint32_t late;     /* those of `seen` that were below `highest` */
    uint64_t repeated; /* datagrams already in `seen` */
    uint32_t flow;
    uint16_t lengths[UB_WINDOW_WORD_PACKETS]; /* of the others */
};

/* The result of runs, in datagrams. */
struct ub_arrivals {
    uint64_t received;
    uint64_t others; /* of them, that have not the usual length */
    uint64_t others_bytes;
    uint64_t duplicate;
    uint64_t late;
    uint64_t ancient;
};

struct ub_flow_state *ub_flow_state_at(struct ub_flow_state *flows, uint32_t window_words,
                                       uint32_t flow);
void ub_run_begin(struct ub_run *run, struct ub_flow_state *state, uint32_t flow, uint64_t number);
void ub_run_flush(struct ub_run *run, uint32_t window_words, struct ub_arrivals *arrivals);

/* Adds a datagram of the run's flow and word; inline: for each datagram outside a streak. */
static inline void ub_run_note(struct ub_run *run, uint64_t sequence) {
    uint32_t bit = UINT32_C(1) << (sequence % UB_WINDOW_WORD_PACKETS);
    if (run->seen & bit) {
        run->repeated++;
        return;
    }
    run->seen |= bit;
    if (run->highest == 0) { /* the flow's first */
        run->highest = sequence + 1;
        return;
    }
    /* The header has 48 bits; the signed distance to the highest one extends them. */
    int64_t ahead = ub_signed48(sequence - (run->highest - 1));
    if (ahead > 0)
        run->highest += (uint64_t)ahead;
    else if (ahead < 0)
        run->late |= bit;
}

/* Before one of another length is added; of one that came twice the first counts. */
static inline void ub_run_note_length(struct ub_run *run, uint64_t sequence, uint32_t length) {
    uint32_t place = (uint32_t)(sequence % UB_WINDOW_WORD_PACKETS);
    if (run->seen & UINT32_C(1) << place)
        return;
    run->others |= UINT32_C(1) << place;
    run->lengths[place] = (uint16_t)length;
}

/* Adds consecutive datagrams of the run's flow and word, which has noted one before. */
static inline void ub_run_note_range(struct ub_run *run, uint64_t sequence, uint32_t packets) {
    uint32_t bits = (uint32_t)((UINT64_C(1) << packets) - 1) << (sequence % UB_WINDOW_WORD_PACKETS);
    int64_t ahead = ub_signed48(sequence - (run->highest - 1));
    if ((run->seen & bits) == 0 && ahead > 0) {
        run->seen |= bits;
        run->highest += (uint64_t)ahead + packets - 1;
        return;
    }
    for (uint32_t index = 0; index < packets; index++)
        ub_run_note(run, sequence + index);
}

#endif
