/*
 * What a loop records besides counts: histograms, packets per millisecond, stalls.
 *
 * Owns their layout in memory. Must never read a clock: a loop already has the time of its call.
 */
#ifndef UB_SERIES_H
#define UB_SERIES_H

#include "loop.h"

/* Inline, because it may be called once per datagram. */
static inline uint32_t ub_bucket(uint64_t value) {
    enum { STEP_BITS = 7 };
    _Static_assert(UB_HISTOGRAM_STEPS == 1 << STEP_BITS, "bits below the leading one");
    if (value < UB_HISTOGRAM_STEPS)
        return (uint32_t)value;
    uint32_t leading = 63 - (uint32_t)__builtin_clzll(value);
    uint32_t bucket = (leading - STEP_BITS + 1) * UB_HISTOGRAM_STEPS +
                      (uint32_t)(value >> (leading - STEP_BITS)) % UB_HISTOGRAM_STEPS;
    return bucket < UB_HISTOGRAM_BUCKETS ? bucket : UB_HISTOGRAM_BUCKETS - 1;
}

static inline void ub_histogram_add(struct ub_histogram *histogram, int64_t value, uint32_t times) {
    ub_add(value < 0 ? &histogram->below_zero : &histogram->counts[ub_bucket((uint64_t)value)],
           times);
}

void ub_milliseconds_add(struct ub_milliseconds *milliseconds, uint64_t since_start_ns,
                         uint32_t packets);
void ub_stalls_add(struct ub_stalls *stalls, struct ub_stall stall);

#endif
