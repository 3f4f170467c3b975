/*
 * When packets are due, and waiting for that.
 *
 * Owns the token bucket on absolute deadlines. Must never send anything.
 */
#include "pacer.h"

#include "series.h"

/* Seconds and the rest separately, so that no product exceeds 64 bits. */
uint64_t ub_pacer_packets(uint64_t elapsed_ns, uint64_t rate_pps) {
    return elapsed_ns / UB_SECOND_NS * rate_pps +
           elapsed_ns % UB_SECOND_NS * rate_pps / UB_SECOND_NS;
}

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
                           .deficit = over == 0 ? 0 : rate_pps - over,
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

void ub_pacer_give_up(struct ub_pacer *pacer, uint64_t packets, uint64_t *stalled) {
    if (packets == 0)
        return;
    uint64_t next = pacer->next + packets;
    ub_add(stalled, packets);
    if (pacer->stalls != NULL)
        ub_stalls_add(pacer->stalls,
                      (struct ub_stall){ub_pacer_elapsed_ns(pacer->next, pacer->rate_pps),
                                        ub_pacer_elapsed_ns(next, pacer->rate_pps), packets});
    pacer->next = next;
}

uint64_t ub_pacer_owed(const struct ub_pacer *pacer, uint64_t now_ns) {
    uint64_t until = now_ns < pacer->end_ns ? now_ns : pacer->end_ns - 1;
    uint64_t elapsed = until > pacer->start_ns ? until - pacer->start_ns : 0;
    return ub_pacer_packets(elapsed, pacer->rate_pps) + 1 - pacer->next;
}

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

uint64_t ub_pacer_wait(const struct ub_pacer *pacer, uint64_t now_ns, uint64_t packets,
                       const struct ub_control *control) {
    uint64_t last = pacer->next + packets - 1;
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
