/*
 * The frame of every sending loop: wait for the start, pace, offer, account.
 *
 * Owns which flow sends how many packets and when, and what an errno means for the counts. Must
 * never build a message (outbox.c) or make the call that offers it (send_*.c).
 */
#include "sending.h"

#include <sched.h>
#include <stdlib.h>

_Static_assert(sizeof(struct ub_control) == UB_CACHE_LINE_BYTES, "stop has a line of its own");
_Static_assert(offsetof(struct ub_send_stats, last_cpu) == 15 * sizeof(uint64_t), "no padding");

enum { FIRST_MESSAGES = 16 };
static const uint64_t CALL_NS = 20000000; /* that a call should last at most */

/* The registry: a new way of sending is a row here, a file, and an enum constant. */
static const struct ub_send_way *const ways[] = {
    [UB_SEND_SENDMMSG] = &ub_send_sendmmsg,
    [UB_SEND_SEND] = &ub_send_send,
};

struct sender {
    const struct ub_send_config *config;
    struct ub_send_stats *stats;
    const struct ub_send_way *way;
    struct ub_outbox box;
    struct ub_zerocopy zerocopy; /* only with config->zerocopy */
    struct ub_pacer pacer;
    uint32_t batch;     /* messages per call at most */
    uint32_t limit;     /* and for now */
    uint64_t *attempts; /* of each flow, by this ub_send; the stats may go on from an earlier one */
    uint64_t attempted; /* their sum */
};

/* Whether the datagrams of a message make sense: none empty, and headers in all of them or none. */
static int segments_valid(const struct ub_send_config *config) {
    uint32_t size_bytes = config->size_bytes, tail_bytes = config->tail_bytes;
    if (config->gso_segments <= 1)
        return tail_bytes == 0;
    if (config->gso_segments > UB_SEGMENTS_MAX || size_bytes == 0)
        return 0;
    if ((uint64_t)config->gso_segments * size_bytes > UB_MESSAGE_BYTES_MAX)
        return 0;
    if (tail_bytes == 0)
        return 1;
    return tail_bytes <= size_bytes &&
           (tail_bytes >= UB_HEADER_BYTES || size_bytes < UB_HEADER_BYTES);
}

static int check_socket(const struct ub_send_config *config, int socket) {
    int zerocopy = 0;
    socklen_t bytes = sizeof zerocopy;
    int error = ub_socket_comes_back(socket, SO_SNDTIMEO);
    if (error != 0 || !config->zerocopy)
        return error;
    /* Without SO_ZEROCOPY the kernel ignores MSG_ZEROCOPY, and no completion would ever come. */
    (void)getsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &zerocopy, &bytes);
    return zerocopy ? 0 : -EINVAL;
}

static int check_config(const struct ub_send_config *config, const struct ub_send_stats *stats) {
    if (config == NULL || stats == NULL || config->control == NULL)
        return -EINVAL;
    if (config->call >= sizeof ways / sizeof *ways)
        return -EINVAL;
    if (config->batch == 0 || config->batch > UB_BATCH_MAX)
        return -EINVAL;
    if (config->size_bytes > UB_PAYLOAD_BYTES_MAX || !segments_valid(config))
        return -EINVAL;
    if (config->flow_count == 0 || config->flow_count > UB_FLOWS_MAX)
        return -EINVAL;
    if (config->sockets == NULL || config->flows == NULL || config->sequences == NULL)
        return -EINVAL;
    /* A datagram without payload has nothing to copy, and gets no completion. */
    if (config->zerocopy && (config->zerocopy_next == NULL || config->size_bytes == 0))
        return -EINVAL;
    if (config->rate_pps > UB_RATE_PPS_MAX || config->end_ns <= config->start_ns)
        return -EINVAL;
    for (uint32_t flow = 0; flow < config->flow_count; flow++) {
        int error = check_socket(config, config->sockets[flow]);
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

/* Packets for the flow's next call: what the pacer has and count leaves, within the limit. Whole
 * messages only, but for the last one of a count, and for what is still owed at the end. */
static uint32_t packets_for(struct sender *sender, uint32_t flow, uint64_t now_ns) {
    uint32_t segments = sender->box.segments;
    uint64_t packets = ub_pacer_available(&sender->pacer, now_ns, &sender->stats->stalled_packets);
    uint64_t left = left_to_flow(sender, flow);
    if (packets > (uint64_t)sender->limit * segments)
        packets = (uint64_t)sender->limit * segments;
    if (packets >= left)
        return (uint32_t)left;
    if (segments > 1 && now_ns < sender->config->end_ns)
        packets -= packets % segments;
    return (uint32_t)packets;
}

/* What one message of the flow needs to be due. */
static uint64_t packets_awaited(const struct sender *sender, uint32_t flow) {
    uint64_t left = left_to_flow(sender, flow);
    return left < sender->box.segments ? left : sender->box.segments;
}

static int finished(const struct sender *sender, uint64_t now_ns) {
    const struct ub_send_config *config = sender->config;
    if (ub_stopped(config->control) || now_ns >= sender->pacer.leave_ns)
        return 1;
    return config->count != 0 && sender->attempted >= config->count;
}

/* A call that took nothing; the attempts it used up, out of the packets of its first message: 0
 * where it is made again. */
static uint64_t account_error(struct ub_send_stats *stats, int error, uint64_t packets) {
    uint64_t *counter;
    switch (error) {
    case EINTR:
        return 0;
    case EAGAIN: /* EWOULDBLOCK is the same number on Linux */
        ub_add(&stats->eagain, 1);
        return 0;
    case ENOBUFS: /* with zero copy: too many completions that nobody read, net.core.optmem_max */
        ub_add(&stats->enobufs, 1);
        return 0;
    case EPERM:
        counter = &stats->eperm;
        break;
    case ECONNREFUSED:
        counter = &stats->econnrefused;
        break;
    case EMSGSIZE:
        counter = &stats->emsgsize;
        break;
    default: /* EINVAL and EIO among them: GSO that the kernel or the route cannot do */
        ub_set(&stats->last_errno, (uint64_t)error);
        counter = &stats->other_errors;
    }
    ub_add(counter, packets);
    return packets;
}

/* What the kernel took, in packets; a call that stopped half way took whole messages only. */
static uint64_t account_taken(struct sender *sender, uint32_t packets, uint32_t messages,
                              uint32_t taken) {
    struct ub_send_stats *stats = sender->stats;
    const struct ub_outbox *box = &sender->box;
    uint64_t sent = taken == messages ? packets : (uint64_t)taken * box->segments;
    uint32_t size_bytes = sender->config->size_bytes;
    ub_add(&stats->sent_packets, sent);
    ub_add(&stats->sent_bytes,
           sent * size_bytes - (uint64_t)taken * (size_bytes - box->tail_bytes));
    ub_add(&stats->sent_messages, taken);
    if (taken < messages)
        ub_add(&stats->partial_calls, 1);
    return sent;
}

static void account(struct sender *sender, const struct ub_offer *offer, uint32_t messages,
                    int taken) {
    uint32_t segments = sender->box.segments, packets = offer->packets;
    uint64_t attempts;
    if (taken < 0) {
        attempts = account_error(sender->stats, -taken, packets < segments ? packets : segments);
    } else {
        /* A call that stopped half way hides the errno of the message it stopped at (net/socket.c,
         * __sys_sendmmsg). That message was not sent; it is offered again, and tells then if the
         * error lasts. A pending ICMP error does not: the hidden call has consumed it. */
        attempts = account_taken(sender, packets, messages, (uint32_t)taken);
        sender->config->sequences[offer->flow] += attempts;
    }
    sender->attempts[offer->flow] += attempts;
    sender->attempted += attempts;
    sender->pacer.given += attempts;
    ub_add(&sender->stats->attempted_packets, attempts);
    ub_add(&sender->stats->send_calls, 1);
}

/* How late the call was for each message that it sent; a message is due with its last datagram. */
static void note_pacing(struct sender *sender, const struct ub_offer *offer, uint64_t sent,
                        uint64_t begun_ns) {
    uint64_t since_start_ns = begun_ns - sender->config->start_ns;
    uint32_t segments = sender->box.segments;
    struct ub_due due = offer->due;
    for (uint64_t packet = 1; packet <= sent; packet++) {
        if (packet % segments == 0 || packet == sent)
            ub_histogram_add(sender->config->pacing,
                             (int64_t)(since_start_ns - due.since_start_ns));
        ub_due_next(&due);
    }
}

/* What the call is to offer, and when it was due. */
static struct ub_offer make_offer(const struct sender *sender, uint32_t flow, uint32_t packets,
                                  uint64_t now_ns) {
    const struct ub_send_config *config = sender->config;
    struct ub_offer offer = {.flow = flow, .packets = packets};
    offer.epoch_to_start_ns = config->start_ns - config->epoch_ns;
    if (config->zerocopy)
        offer.first_slot = sender->zerocopy.bank * sender->zerocopy.batch;
    if (config->rate_pps != 0)
        offer.due = ub_due_at(sender->pacer.given, config->rate_pps);
    else
        offer.due.since_start_ns = now_ns - config->start_ns;
    return offer;
}

/* SO_SNDTIMEO is anew for each message: on a socket that drains slowly but steadily a call lasts as
 * long as all that it offers, whatever the end and stop say. So it offers no more than went in the
 * time a call should last, and little at first, when nobody knows. */
static void adapt(struct sender *sender, int taken, uint64_t took_ns) {
    if (took_ns > CALL_NS) {
        uint64_t went = taken > 0 ? (uint64_t)taken * CALL_NS / took_ns : 0;
        sender->limit = went > 1 ? (uint32_t)went : 1;
    } else if (sender->limit < sender->batch && taken == (int)sender->limit &&
               took_ns < CALL_NS / 2) {
        sender->limit = sender->limit < sender->batch / 2 ? 2 * sender->limit : sender->batch;
    }
}

/* One call on a flow; the time after it. */
static uint64_t offer(struct sender *sender, uint32_t flow, uint32_t packets, uint64_t begun_ns) {
    const struct ub_send_config *config = sender->config;
    struct ub_offer what = make_offer(sender, flow, packets, begun_ns);
    uint32_t messages = ub_outbox_fill(&sender->box, config, &what);
    int taken = sender->way->offer(config->sockets[flow], sender->box.messages + what.first_slot,
                                   messages, config->zerocopy ? MSG_ZEROCOPY : 0);
    uint64_t now_ns = ub_now_ns();
    uint64_t sent_before = sender->stats->sent_packets;
    account(sender, &what, messages, taken);
    adapt(sender, taken, now_ns - begun_ns);
    uint64_t sent = sender->stats->sent_packets - sent_before;
    if (config->pacing != NULL && config->rate_pps != 0)
        note_pacing(sender, &what, sent, begun_ns);
    if (config->milliseconds != NULL)
        ub_milliseconds_add(config->milliseconds, now_ns - config->start_ns, (uint32_t)sent);
    if (config->zerocopy)
        ub_zerocopy_offered(&sender->zerocopy, flow, messages, taken);
    return now_ns;
}

/* What is still owed when the loop has left by itself was given up, too. */
static void settle(struct sender *sender) {
    const struct ub_send_config *config = sender->config;
    uint64_t left = config->count == 0 ? UINT64_MAX : config->count - sender->attempted;
    if (config->rate_pps == 0 || ub_stopped(config->control))
        return;
    uint64_t owed = ub_pacer_owed(&sender->pacer, config->end_ns);
    ub_pacer_give_up(&sender->pacer, owed < left ? owed : left, &sender->stats->stalled_packets);
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
            now =
                ub_pacer_wait(&sender->pacer, now, packets_awaited(sender, flow), config->control);
            continue;
        }
        if (config->zerocopy && !ub_zerocopy_ready(&sender->zerocopy)) {
            now = ub_now_ns();
            continue;
        }
        int first = stats->first_ns == 0;
        if (first)
            ub_set(&stats->first_ns, now);
        /* The time after one call is the time before the next: one clock read a call. */
        now = offer(sender, flow, packets, now);
        if (first && config->rate_pps != 0)
            ub_set(&stats->first_packets, stats->sent_packets);
        ub_set(&stats->last_ns, now);
        ub_set(&stats->last_cpu, (uint64_t)sched_getcpu() + 1);
        flow++;
    }
}

/* Everything the loop needs; -ENOMEM where memory is short. */
static int make(struct sender *sender) {
    const struct ub_send_config *config = sender->config;
    uint32_t slots = sender->batch;
    if (config->zerocopy) {
        int error = ub_zerocopy_make(&sender->zerocopy, config, sender->stats, sender->batch);
        if (error != 0)
            return error;
        slots *= sender->zerocopy.banks;
    }
    sender->attempts = ub_allocate(config->flow_count * sizeof *sender->attempts);
    if (sender->attempts == NULL)
        return -ENOMEM;
    return ub_outbox_make(&sender->box, config, slots);
}

static void release(struct sender *sender) {
    ub_outbox_release(&sender->box);
    ub_zerocopy_release(&sender->zerocopy);
    free(sender->attempts);
}

int ub_send(const struct ub_send_config *config, struct ub_send_stats *stats) {
    int error = check_config(config, stats);
    if (error != 0)
        return error;
    struct sender sender = {.config = config, .stats = stats, .way = ways[config->call]};
    sender.batch =
        config->batch < sender.way->messages_max ? config->batch : sender.way->messages_max;
    sender.limit = sender.batch < FIRST_MESSAGES ? sender.batch : FIRST_MESSAGES;
    error = make(&sender);
    if (error == 0) {
        ub_pacer_init(&sender.pacer, config);
        wait_for_start(config);
        loop(&sender);
        settle(&sender);
        if (config->zerocopy)
            ub_zerocopy_finish(&sender.zerocopy);
    }
    release(&sender);
    return error;
}
