/*
 * The basis of every loop: clock, stop, counters, memory, and sockets with timeouts.
 *
 * The only file that includes udpbench.h. Must never hold anything Python may call: that stands in
 * udpbench.h.
 */
#ifndef UB_LOOP_H
#define UB_LOOP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sendmmsg, recvmmsg, sched_getcpu */
#endif

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "udpbench.h"

#define UB_SECOND_NS UINT64_C(1000000000)
#define UB_SLICE_NS UINT64_C(50000000) /* longest sleep between checks of control->stop */
#define UB_SLICE_MS 50                 /* the same, for poll(2) and epoll_wait(2) */

/* ---- clock and stop ------------------------------------------------------------------------- */

static inline uint64_t ub_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UB_SECOND_NS + (uint64_t)now.tv_nsec;
}

static inline uint64_t ub_now_ns(void) {
    return ub_clock_ns(CLOCK_MONOTONIC);
}

static inline int ub_stopped(const struct ub_control *control) {
    return __atomic_load_n(&control->stop, __ATOMIC_RELAXED) != 0;
}

/* Sleeps until a time, at most one slice, so that a caller in a loop sees stop in time. */
void ub_sleep_slice(uint64_t now_ns, uint64_t until_ns);

/* How far CLOCK_REALTIME is ahead of CLOCK_MONOTONIC, which has just been read. CLOCK_REALTIME is
 * read between two readings of the other; again, a few times, if another thread had the CPU. */
uint64_t ub_realtime_ahead_ns(uint64_t now_ns);

/* ---- counters ------------------------------------------------------------------------------- */

/* Each counter has one writer, so a plain read of the old value is enough. The store is atomic
 * because the sampling thread reads at any time, and must never see half a value. */
static inline void ub_set(uint64_t *counter, uint64_t value) {
    __atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static inline void ub_add(uint64_t *counter, uint64_t amount) {
    ub_set(counter, *counter + amount);
}

/* ---- memory and sockets --------------------------------------------------------------------- */

static inline size_t ub_lines_bytes(size_t bytes) {
    return (bytes + UB_CACHE_LINE_BYTES - 1) / UB_CACHE_LINE_BYTES * UB_CACHE_LINE_BYTES;
}

/* Zeroed, cache-line aligned and touched, so that its pages lie where the calling thread runs. */
void *ub_allocate(size_t bytes);

/* Whether these are blocking sockets whose calls return by themselves: `option` is SO_RCVTIMEO or
 * SO_SNDTIMEO. */
int ub_sockets_return(const int32_t *sockets, uint32_t count, int option);

#endif
