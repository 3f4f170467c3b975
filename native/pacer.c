/*
 * When packets are due, and waiting for that.
 *
 * Owns the token bucket on absolute deadlines, and the ways to wait. Must never send anything.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

/* Whole packets in a time. Seconds and the rest apart, so that no product leaves 64 bits. */
uint64_t ub_pacer_packets(uint64_t elapsed_ns, uint64_t rate_pps) {
    return elapsed_ns / UB_SECOND_NS * rate_pps +
           elapsed_ns % UB_SECOND_NS * rate_pps / UB_SECOND_NS;
}

/* The time after which that many packets have passed, rounded up: never early. */
uint64_t ub_pacer_elapsed_ns(uint64_t packets, uint64_t rate_pps) {
    return packets / rate_pps * UB_SECOND_NS +
           (packets % rate_pps * UB_SECOND_NS + rate_pps - 1) / rate_pps;
}

struct ub_due ub_due_at(uint64_t packet, uint64_t rate_pps) {
    uint64_t since_start_ns = ub_pacer_elapsed_ns(packet, rate_pps);
    uint64_t over = packet % rate_pps * UB_SECOND_NS % rate_pps;
    return (struct ub_due){.since_start_ns = since_start_ns,
                           .whole_ns = UB_SECOND_NS / rate_pps,
                           .rest = UB_SECOND_NS % rate_pps,
                           .lacking = over == 0 ? 0 : rate_pps - over,
                           .rate_pps = rate_pps};
}

void ub_pacer_init(struct ub_pacer *pacer, const struct ub_send_config *config) {
    uint64_t bucket = ub_pacer_packets(config->bucket_ns, config->rate_pps);
    uint64_t message = config->gso_segments > 1 ? config->gso_segments : 1;
    *pacer = (struct ub_pacer){
        .rate_pps = config->rate_pps,
        .start_ns = config->start_ns,
        .end_ns = config->end_ns,
        .leave_ns = config->end_ns,
        .bucket_packets = bucket > message ? bucket : message,
        .sleeps = config->pace_sleeps,
        .stalls = config->stalls,
    };
    if (pacer->rate_pps != 0 && pacer->leave_ns + config->bucket_ns > pacer->leave_ns)
        pacer->leave_ns += config->bucket_ns;
}

/* The next packets are never attempted; nothing where there are none. */
void ub_pacer_give_up(struct ub_pacer *pacer, uint64_t packets, uint64_t *stalled) {
    if (packets == 0)
        return;
    uint64_t next = pacer->given + packets;
    ub_add(stalled, packets);
    if (pacer->stalls != NULL)
        ub_stalls_add(pacer->stalls,
                      (struct ub_stall){ub_pacer_elapsed_ns(pacer->given, pacer->rate_pps),
                                        ub_pacer_elapsed_ns(next, pacer->rate_pps), packets});
    pacer->given = next;
}

/* Packets that are due and not given yet. Time stands still at the end. */
uint64_t ub_pacer_owed(const struct ub_pacer *pacer, uint64_t now_ns) {
    uint64_t until = now_ns < pacer->end_ns ? now_ns : pacer->end_ns - 1;
    uint64_t elapsed = until > pacer->start_ns ? until - pacer->start_ns : 0;
    return ub_pacer_packets(elapsed, pacer->rate_pps) + 1 - pacer->given;
}

/*
 * Packets that may be attempted now; beyond the bucket they are given up and added to `stalled`.
 * What was due before the end may be made up after it, and no more.
 */
uint64_t ub_pacer_available(struct ub_pacer *pacer, uint64_t now_ns, uint64_t *stalled) {
    if (pacer->rate_pps == 0)
        return now_ns < pacer->end_ns ? UINT64_MAX : 0;
    uint64_t owed = ub_pacer_owed(pacer, now_ns);
    if (owed > pacer->bucket_packets) {
        ub_pacer_give_up(pacer, owed - pacer->bucket_packets, stalled);
        owed = pacer->bucket_packets;
    }
    return owed;
}

/* Waits until so many packets are due, the end has come, or stop is set; the time it is then. */
uint64_t ub_pacer_wait(const struct ub_pacer *pacer, uint64_t now_ns, uint64_t packets,
                       const struct ub_control *control) {
    uint64_t last = pacer->given + packets - 1;
    uint64_t due = pacer->start_ns + ub_pacer_elapsed_ns(last, pacer->rate_pps);
    if (due > pacer->end_ns)
        due = pacer->end_ns;
    if (pacer->sleeps) {
        ub_sleep_slice(now_ns, due);
        return ub_now_ns();
    }
    do {
        now_ns = ub_now_ns();
    } while (now_ns < due && !ub_stopped(control));
    return now_ns;
}

void ub_sleep_slice(uint64_t now_ns, uint64_t until_ns) {
    if (until_ns <= now_ns)
        return;
    if (until_ns - now_ns > UB_SLICE_NS)
        until_ns = now_ns + UB_SLICE_NS;
    struct timespec at = {.tv_sec = (time_t)(until_ns / UB_SECOND_NS),
                          .tv_nsec = (long)(until_ns % UB_SECOND_NS)};
    /* A signal ends it early, which is one look at stop more. */
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

int ub_socket_comes_back(int socket, int timeout_option) {
    struct timeval timeout;
    socklen_t bytes = sizeof timeout;
    if (getsockopt(socket, SOL_SOCKET, timeout_option, &timeout, &bytes) < 0)
        return -errno;
    return timeout.tv_sec == 0 && timeout.tv_usec == 0 ? -EINVAL : 0;
}

void *ub_allocate(size_t bytes) {
    void *memory = aligned_alloc(UB_CACHE_LINE_BYTES, ub_lines_bytes(bytes));
    if (memory != NULL)
        memset(memory, 0, ub_lines_bytes(bytes));
    return memory;
}
