/*
 * The frame of every sending loop: wait for the start, pace, offer, account.
 *
 * Owns which flow sends how many packets and when, and what an errno means for the counts. Must
 * never build a message: that is the business of a way of sending (send_*.c).
 */
#include "internal.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>

_Static_assert(sizeof(struct ub_control) == UB_CACHE_LINE_BYTES, "stop has a line of its own");
_Static_assert(sizeof(struct ub_send_stats) == 2 * UB_CACHE_LINE_BYTES, "whole lines, no sharing");
_Static_assert(offsetof(struct ub_send_stats, last_cpu) == 15 * sizeof(uint64_t), "no padding");

/* The registry: a new way of sending is a row here, a file, and an enum constant. */
static const struct ub_send_way *const ways[] = {
    [UB_SEND_SENDMMSG] = &ub_send_sendmmsg,
};

struct sender {
    const struct ub_send_config *config;
    struct ub_send_stats *stats;
    const struct ub_send_way *way;
    void *memory;
    struct ub_pacer pacer;
    uint64_t *attempts; /* of each flow, by this ub_send; the stats may go on from an earlier one */
    uint64_t attempted; /* their sum */
};

static int check_config(const struct ub_send_config *config, const struct ub_send_stats *stats) {
    if (config == NULL || stats == NULL || config->control == NULL)
        return -EINVAL;
    if (config->call >= sizeof ways / sizeof *ways)
        return -EINVAL;
    if (config->batch == 0 || config->batch > UB_BATCH_MAX)
        return -EINVAL;
    if (config->size_bytes < UB_HEADER_BYTES || config->size_bytes > UB_PAYLOAD_BYTES_MAX)
        return -EINVAL;
    if (config->flow_count == 0 || config->flow_count > UB_FLOWS_MAX)
        return -EINVAL;
    if (config->sockets == NULL || config->flows == NULL || config->sequences == NULL)
        return -EINVAL;
    if (config->rate_pps > UB_RATE_PPS_MAX || config->end_ns <= config->start_ns)
        return -EINVAL;
    for (uint32_t flow = 0; flow < config->flow_count; flow++) {
        int error = ub_socket_comes_back(config->sockets[flow], SO_SNDTIMEO);
        if (error != 0)
            return error;
    }
    return 0;
}

static void wait_for_start(const struct ub_send_config *config) {
    uint64_t now = ub_now_ns();
    while (now < config->start_ns && !ub_stopped(config->control)) {
        ub_sleep_slice(now, config->start_ns);
        now = ub_now_ns();
    }
}

/* What `count` leaves to a flow: its even share, fixed beforehand, so that a flow whose call took
 * nothing gets its packets in a later turn. */
static uint64_t left_to_flow(const struct sender *sender, uint32_t flow) {
    const struct ub_send_config *config = sender->config;
    if (config->count == 0)
        return UINT64_MAX;
    uint64_t even = config->count / config->flow_count;
    return even + (flow < config->count % config->flow_count) - sender->attempts[flow];
}

/* The flow whose turn it is, from `flow` on; there is one as long as count is not reached. */
static uint32_t next_flow(const struct sender *sender, uint32_t flow) {
    for (;; flow++) {
        if (flow >= sender->config->flow_count)
            flow = 0;
        if (left_to_flow(sender, flow) != 0)
            return flow;
    }
}

/* Packets for the flow's next call: what the pacer has and count leaves, at most a batch. */
static uint32_t packets_for(struct sender *sender, uint32_t flow, uint64_t now_ns) {
    uint64_t packets = ub_pacer_available(&sender->pacer, now_ns, &sender->stats->stalled_packets);
    uint64_t left = left_to_flow(sender, flow);
    if (packets > left)
        packets = left;
    return packets < sender->config->batch ? (uint32_t)packets : sender->config->batch;
}

static int finished(const struct sender *sender, uint64_t now_ns) {
    const struct ub_send_config *config = sender->config;
    if (ub_stopped(config->control) || now_ns >= sender->pacer.leave_ns)
        return 1;
    return config->count != 0 && sender->attempted >= config->count;
}

/* A call that took nothing; the attempts it used up: 0 where it is made again. */
static uint64_t account_error(struct ub_send_stats *stats, int error) {
    switch (error) {
    case EINTR:
        return 0;
    case EAGAIN: /* EWOULDBLOCK is the same number on Linux */
        ub_add(&stats->eagain, 1);
        return 0;
    case ENOBUFS:
        ub_add(&stats->enobufs, 1);
        return 0;
    case EPERM:
        ub_add(&stats->eperm, 1);
        return 1;
    case ECONNREFUSED:
        ub_add(&stats->econnrefused, 1);
        return 1;
    case EMSGSIZE:
        ub_add(&stats->emsgsize, 1);
        return 1;
    default:
        ub_set(&stats->last_errno, (uint64_t)error);
        ub_add(&stats->other_errors, 1);
        return 1;
    }
}

static void account(struct sender *sender, uint32_t flow, uint32_t offered, int taken) {
    struct ub_send_stats *stats = sender->stats;
    uint64_t attempts;
    if (taken < 0) {
        attempts = account_error(stats, -taken);
    } else {
        /* A call that stopped half way hides the errno of the message it stopped at (net/socket.c,
         * __sys_sendmmsg). That message was not sent; it is offered again, and tells then if the
         * error lasts. A pending ICMP error does not: the hidden call has consumed it. */
        attempts = (uint64_t)taken;
        sender->config->sequences[flow] += attempts;
        ub_add(&stats->sent_packets, attempts);
        ub_add(&stats->sent_bytes, attempts * sender->config->size_bytes);
        if (attempts < offered)
            ub_add(&stats->partial_calls, 1);
    }
    sender->attempts[flow] += attempts;
    sender->attempted += attempts;
    sender->pacer.given += attempts;
    ub_add(&stats->attempted_packets, attempts);
    ub_add(&stats->send_calls, 1);
}

static void loop(struct sender *sender) {
    const struct ub_send_config *config = sender->config;
    struct ub_send_stats *stats = sender->stats;
    uint32_t flow = 0;
    uint64_t now = ub_now_ns();
    while (!finished(sender, now)) {
        flow = next_flow(sender, flow);
        uint32_t packets = packets_for(sender, flow, now);
        if (packets == 0) {
            if (now >= config->end_ns)
                break;
            now = ub_pacer_wait(&sender->pacer, now, config->control);
            continue;
        }
        if (stats->first_ns == 0)
            ub_set(&stats->first_ns, now);
        int taken = sender->way->offer(sender->memory, config, flow, packets, now);
        /* The time after one call is the time before the next: one clock read a call. */
        now = ub_now_ns();
        account(sender, flow, packets, taken);
        ub_set(&stats->last_ns, now);
        ub_set(&stats->last_cpu, (uint64_t)sched_getcpu() + 1);
        flow++;
    }
}

int ub_send(const struct ub_send_config *config, struct ub_send_stats *stats) {
    int error = check_config(config, stats);
    if (error != 0)
        return error;
    struct sender sender = {.config = config, .stats = stats, .way = ways[config->call]};
    sender.attempts = ub_allocate(config->flow_count * sizeof *sender.attempts);
    if (sender.attempts == NULL)
        return -ENOMEM;
    sender.memory = sender.way->prepare(config);
    if (sender.memory == NULL) {
        free(sender.attempts);
        return -ENOMEM;
    }
    ub_pacer_init(&sender.pacer, config);
    wait_for_start(config);
    loop(&sender);
    sender.way->release(sender.memory);
    free(sender.attempts);
    return 0;
}
