/*
 * When packets are due: a token bucket on absolute deadlines.
 *
 * Must never send anything.
 */
#ifndef UB_PACER_H
#define UB_PACER_H

#include "loop.h"

/* Packet n, counted from 0, is due n / rate after the start: deadlines are absolute, so that a
 * late wake-up delays one packet and does not lower the average. */
struct ub_pacer {
    uint64_t rate_pps; /* 0: unlimited */
    uint64_t start_ns;
    uint64_t end_ns;
    uint64_t leave_ns;       /* end, plus the debt that may still be made up */
    uint64_t bucket_packets; /* holds a whole message at least */
    uint64_t next;           /* packets before it were attempted or given up */
    uint32_t sleeps;
    struct ub_stalls *stalls; /* NULL: none */
};

/* Due times of successive packets without a division for each; the step is inline, once per
 * header. */
struct ub_due {
    uint64_t since_start_ns; /* rounded up: never early */
    uint64_t whole_ns;       /* step, and its rest in parts of rate_pps */
    uint64_t rest;
    uint64_t deficit; /* added by rounding up, in the same parts */
    uint64_t rate_pps;
};

struct ub_due ub_due_at(uint64_t packet, uint64_t rate_pps);

static inline void ub_due_next(struct ub_due *due) {
    due->since_start_ns += due->whole_ns;
    if (due->rest > due->deficit) {
        due->since_start_ns++;
        due->deficit += due->rate_pps;
    }
    due->deficit -= due->rest;
}

/* Whole packets in a duration. */
uint64_t ub_pacer_packets(uint64_t elapsed_ns, uint64_t rate_pps);

/* The time after which that many packets have passed, rounded up: never early. */
uint64_t ub_pacer_elapsed_ns(uint64_t packets, uint64_t rate_pps);

void ub_pacer_init(struct ub_pacer *pacer, const struct ub_send_config *config);

/* Packets that are due and neither attempted nor given up. Time stands still at the end. */
uint64_t ub_pacer_owed(const struct ub_pacer *pacer, uint64_t now_ns);

/* Packets that may be attempted now; those beyond the bucket are given up and added to `stalled`.
 * What was due before the end may be made up after it, and no more. */
uint64_t ub_pacer_available(struct ub_pacer *pacer, uint64_t now_ns, uint64_t *stalled);

/* Skips the next packets, which are never attempted, and adds them to `stalled`. */
void ub_pacer_give_up(struct ub_pacer *pacer, uint64_t packets, uint64_t *stalled);

/* Waits until that many packets are due, the end has come, or stop is set; returns the time. */
uint64_t ub_pacer_wait(const struct ub_pacer *pacer, uint64_t now_ns, uint64_t packets,
                       const struct ub_control *control);

#endif
