/*
 * What a loop records besides counts: histograms, packets per millisecond, stalls.
 */
#include "series.h"

uint32_t ub_histogram_bucket(uint64_t value) {
    return ub_bucket(value);
}

/* Times never decrease: one loop reads them in order. */
void ub_milliseconds_add(struct ub_milliseconds *milliseconds, uint64_t since_start_ns,
                         uint32_t packets) {
    uint64_t at = since_start_ns / 1000000;
    uint64_t begun = milliseconds->begun;
    if (at >= begun) {
        /* A pause longer than the ring clears all of it. */
        uint64_t first = at - begun < UB_MILLISECONDS ? begun : at - UB_MILLISECONDS + 1;
        for (uint64_t cleared = first; cleared <= at; cleared++)
            __atomic_store_n(&milliseconds->packets[cleared % UB_MILLISECONDS], 0,
                             __ATOMIC_RELAXED);
        /* Release: a reader of the new number sees the final counts of the milliseconds before. */
        __atomic_store_n(&milliseconds->begun, at + 1, __ATOMIC_RELEASE);
    }
    uint32_t *slot = &milliseconds->packets[at % UB_MILLISECONDS];
    __atomic_store_n(slot, *slot + packets, __ATOMIC_RELAXED);
}

/* Merges neighbours in pairs, which frees space and keeps the sum. */
static void merge_pairs(struct ub_stalls *stalls) {
    for (uint64_t pair = 0; pair < UB_STALLS_MAX / 2; pair++) {
        const struct ub_stall *first = &stalls->list[2 * pair], *second = first + 1;
        stalls->list[pair] =
            (struct ub_stall){first->from_ns, second->until_ns, first->packets + second->packets};
    }
    ub_set(&stalls->count, UB_STALLS_MAX / 2);
}

void ub_stalls_add(struct ub_stalls *stalls, struct ub_stall stall) {
    if (stalls->count == UB_STALLS_MAX)
        merge_pairs(stalls);
    stalls->list[stalls->count] = stall;
    ub_set(&stalls->count, stalls->count + 1);
}
