/*
 * What a loop leaves behind beside its counts: distributions, packets per millisecond, stalls.
 *
 * Owns how they lie in memory. Must never read a clock: a loop has the time of its call already.
 */
#include "internal.h"

uint32_t ub_histogram_bucket(uint64_t value) {
    return ub_bucket(value);
}

/* Times never fall, because one loop reads them one after the other. */
void ub_milliseconds_add(struct ub_milliseconds *milliseconds, uint64_t since_start_ns,
                         uint32_t packets) {
    uint64_t at = since_start_ns / 1000000;
    uint64_t begun = milliseconds->begun;
    if (at >= begun) {
        /* After a pause longer than the ring every place of it is a new one. */
        uint64_t first = at - begun < UB_MILLISECONDS ? begun : at - UB_MILLISECONDS + 1;
        for (uint64_t each = first; each <= at; each++)
            __atomic_store_n(&milliseconds->packets[each % UB_MILLISECONDS], 0, __ATOMIC_RELAXED);
        /* Release: who sees the new number sees what the milliseconds before it came to. */
        __atomic_store_n(&milliseconds->begun, at + 1, __ATOMIC_RELEASE);
    }
    uint32_t *place = &milliseconds->packets[at % UB_MILLISECONDS];
    __atomic_store_n(place, *place + packets, __ATOMIC_RELAXED);
}

/* Makes one of each two neighbours, so that a list has room again and its sum stays. */
static void merge(struct ub_stalls *stalls) {
    for (uint64_t pair = 0; pair < UB_STALLS_MAX / 2; pair++) {
        const struct ub_stall *first = &stalls->list[2 * pair], *second = first + 1;
        stalls->list[pair] =
            (struct ub_stall){first->from_ns, second->until_ns, first->packets + second->packets};
    }
    ub_set(&stalls->count, UB_STALLS_MAX / 2);
}

void ub_stalls_add(struct ub_stalls *stalls, struct ub_stall stall) {
    if (stalls->count == UB_STALLS_MAX)
        merge(stalls);
    stalls->list[stalls->count] = stall;
    ub_set(&stalls->count, stalls->count + 1);
}
