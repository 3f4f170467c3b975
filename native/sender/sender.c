/*
 * The frame of every sending loop: wait for the start, pace, offer, account.
 *
 * Owns which flow sends how many packets and when, and what an errno means for the counts. Must
 * never build a message (outbox.c), or know how its way (send.c) calls or what it waits for. All it
 * knows is that a way may keep messages that it offered (`left` of the outbox): they are the next.
 */
#include "datagram.h"
#include "ids.h"
#include "send.h"
#include "series.h"

#include <sched.h>
#include <stdlib.h>

_Static_assert(sizeof(struct ub_control) == UB_CACHE_LINE_BYTES, "stop has a line of its own");
_Static_assert(offsetof(struct ub_send_stats, last_cpu) == 15 * sizeof(uint64_t), "no padding");

enum { FIRST_MESSAGES = 16 };
static const uint64_t CALL_NS = 20000000; /* target for the duration of a call */

struct sender {
    const struct ub_send_config *config;
    struct ub_send_stats *stats;
    const struct ub_send_way *way;
    struct ub_outbox box;
    struct ub_pacer pacer;
    uint32_t batch;     /* messages per call at most */
    uint32_t limit;     /* and currently, see adapt() */
    uint64_t *attempts; /* of each flow, by this ub_send; the stats may continue an earlier one */
    uint64_t attempted; /* their sum */
};

/* ---- permitted configs ----------------------------------------------------------------------- */

static int is_numbered(const struct ub_datagram *datagram) {
    return datagram->size_bytes >= UB_HEADER_BYTES;
}

static const char *check_datagrams(const struct ub_send_config *config) {
    const struct ub_datagram *first = config->datagrams;
    if (!ub_datagrams_valid(first, config->datagram_count, 0))
        return "datagrams: one or more, each of 0 to UB_MESSAGE_BYTES_MAX bytes";
    for (uint32_t index = 1; index < config->datagram_count; index++) {
        if ((first[index].bytes == NULL) != (first->bytes == NULL))
            return "datagrams: all of the user's or none";
        if (first->bytes == NULL && is_numbered(&first[index]) != is_numbered(first))
            return "datagrams: all of at least UB_HEADER_BYTES bytes or none";
    }
    return NULL;
}

static const char *check_segments(const struct ub_send_config *config) {
    uint32_t count = config->datagram_count, size_bytes = config->datagrams->size_bytes;
    if (config->gso_segments <= 1)
        return NULL;
    if (config->gso_segments > UB_SEGMENTS_MAX)
        return "gso_segments: 0 to UB_SEGMENTS_MAX";
    if (config->datagrams->bytes != NULL)
        return "gso_segments: 0 or 1 with datagrams of the user's";
    if (count > 2 || config->datagrams[count - 1].size_bytes > size_bytes)
        return "datagrams: one, or two of which the second is not longer, with gso_segments";
    if (!ub_datagrams_valid(config->datagrams, count, 1))
        return "datagrams: none empty with gso_segments";
    if ((uint64_t)config->gso_segments * size_bytes > UB_MESSAGE_BYTES_MAX)
        return "gso_segments: UB_MESSAGE_BYTES_MAX bytes at most";
    return NULL;
}

static const char *check_sockets(const struct ub_send_config *config) {
    if (config->zerocopy && !ub_send_way_of(config->call)->zerocopy)
        return "zerocopy: 0 with a way of sending that has none";
    if (config->zerocopy && config->zerocopy_next == NULL)
        return "zerocopy_next: not NULL with zerocopy";
    if (config->zerocopy && !ub_datagrams_valid(config->datagrams, config->datagram_count, 1))
        return "zerocopy: only with a payload: without one nothing is copied or completed";
    if (!ub_sockets_return(config->sockets, config->flow_count, SO_SNDTIMEO))
        return "sockets: open ones, with SO_SNDTIMEO set";
    for (uint32_t flow = 0; config->zerocopy && flow < config->flow_count; flow++) {
        /* Without SO_ZEROCOPY the kernel ignores MSG_ZEROCOPY: no completion ever comes. */
        int zerocopy = 0;
        socklen_t bytes = sizeof zerocopy;
        (void)getsockopt(config->sockets[flow], SOL_SOCKET, SO_ZEROCOPY, &zerocopy, &bytes);
        if (!zerocopy)
            return "sockets: with SO_ZEROCOPY set";
    }
    return NULL;
}

const char *ub_send_check(const struct ub_send_config *config) {
    if (config == NULL)
        return "config: not NULL";
    if (config->control == NULL)
        return "control: not NULL";
    const struct ub_send_way *way = ub_send_way_of(config->call);
    if (way == NULL)
        return "call: a way of sending";
    if (config->batch == 0 || config->batch > UB_BATCH_MAX)
        return "batch: 1 to UB_BATCH_MAX";
    if (config->flow_count == 0 || config->flow_count > UB_FLOWS_MAX)
        return "flow_count: 1 to UB_FLOWS_MAX";
    if (config->sockets == NULL)
        return "sockets: not NULL";
    if (config->flows == NULL)
        return "flows: not NULL";
    if (config->sequences == NULL)
        return "sequences: not NULL";
    if (config->rate_pps > UB_RATE_PPS_MAX)
        return "rate_pps: 0 to UB_RATE_PPS_MAX";
    if (config->end_ns <= config->start_ns)
        return "end_ns: after start_ns";
    const char *refused = check_datagrams(config);
    if (refused == NULL)
        refused = check_segments(config);
    if (refused == NULL)
        refused = ub_ids_check(config);
    if (refused == NULL && way->check != NULL)
        refused = way->check(config);
    return refused != NULL ? refused : check_sockets(config);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void wait_for_start(const struct ub_send_config *config) {
    uint64_t now = ub_now_ns();
    while (now < config->start_ns && !ub_stopped(config->control)) {
        ub_sleep_slice(now, config->start_ns);
        now = ub_now_ns();
    }
}

/* What `count` leaves to a flow: its even share, fixed beforehand, so that a flow whose call sent
 * nothing gets its packets in a later turn. */
static uint64_t flow_remainder(const struct sender *sender, uint32_t flow) {
    const struct ub_send_config *config = sender->config;
    if (config->count == 0)
        return UINT64_MAX;
    uint64_t even = config->count / config->flow_count;
    return even + (flow < config->count % config->flow_count) - sender->attempts[flow];
}

/* The flow whose turn it is, from `flow` on; there is one until count is reached. */
static uint32_t next_flow(const struct sender *sender, uint32_t flow) {
    for (;; flow++) {
        if (flow >= sender->config->flow_count)
            flow = 0;
        if (flow_remainder(sender, flow) != 0)
            return flow;
    }
}

/* Packets for the flow's next call: what is due and count leaves, within the limit. Whole messages
 * only, except the last one of a count and what is still owed at the end. */
static uint32_t packets_for(struct sender *sender, uint32_t flow, uint64_t now_ns) {
    uint32_t segments = sender->box.segments;
    uint64_t packets = ub_pacer_available(&sender->pacer, now_ns, &sender->stats->stalled_packets);
    uint64_t remainder = flow_remainder(sender, flow);
    if (packets > (uint64_t)sender->limit * segments)
        packets = (uint64_t)sender->limit * segments;
    if (packets >= remainder)
        return (uint32_t)remainder;
    if (segments > 1 && now_ns < sender->config->end_ns)
        packets -= packets % segments;
    return (uint32_t)packets;
}

/* What is offered next: what the kernel left of a call, else what a flow may send, from `flow` on;
 * no packets if none is due. */
static void choose(struct sender *sender, struct ub_offer *offer, uint64_t now_ns) {
    const struct ub_outbox *box = &sender->box;
    offer->flow = box->left != 0 ? box->left_flow : next_flow(sender, offer->flow);
    offer->packets = box->left != 0 ? box->left : packets_for(sender, offer->flow, now_ns);
}

/* Packets that must be due before a message of the flow can be sent. */
static uint64_t message_packets(const struct sender *sender, uint32_t flow) {
    uint64_t remainder = flow_remainder(sender, flow);
    return remainder < sender->box.segments ? remainder : sender->box.segments;
}

static int finished(const struct sender *sender, uint64_t now_ns) {
    const struct ub_send_config *config = sender->config;
    if (ub_stopped(config->control) || now_ns >= sender->pacer.leave_ns)
        return 1;
    return config->count != 0 && sender->attempted >= config->count;
}

/* A call that sent nothing; the attempts it used up, out of the packets of its first message: 0 if
 * the call is repeated. */
static uint64_t account_error(struct ub_send_stats *stats, int error, uint64_t packets) {
    uint64_t *counter;
    switch (error) {
    case EINTR:
        return 0;
    case EAGAIN: /* EWOULDBLOCK is the same number on Linux */
        ub_add(&stats->eagain, 1);
        return 0;
    case ENOBUFS: /* with zero copy: too many unread completions, net.core.optmem_max */
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
    default: /* EINVAL and EIO, too: GSO that the kernel or the route cannot do */
        ub_set(&stats->last_errno, (uint64_t)error);
        counter = &stats->other_errors;
    }
    ub_add(counter, packets);
    return packets;
}

/* The packets that the kernel took; a call that stopped half way took whole messages only. */
static uint64_t account_sent(struct sender *sender, const struct ub_offer *offer, uint32_t messages,
                             uint32_t sent_messages) {
    struct ub_send_stats *stats = sender->stats;
    uint64_t sent =
        sent_messages == messages ? offer->packets : (uint64_t)sent_messages * sender->box.segments;
    ub_add(&stats->sent_packets, sent);
    ub_add(&stats->sent_bytes, ub_outbox_bytes(&sender->box, sent_messages, sent));
    ub_add(&stats->sent_messages, sent_messages);
    if (sent_messages != 0 && sent_messages < messages)
        ub_add(&stats->partial_calls, 1);
    return sent;
}

/* `result`: messages that the kernel took, or -errno. */
static void account_call(struct sender *sender, const struct ub_offer *offer, uint32_t messages,
                         int result) {
    uint32_t segments = sender->box.segments, packets = offer->packets;
    uint64_t attempts;
    if (result < 0) {
        attempts = account_error(sender->stats, -result, packets < segments ? packets : segments);
    } else {
        /* A call that stopped half way hides the errno of the message it stopped at (net/socket.c,
         * __sys_sendmmsg). That message was not sent; it is offered again, and returns the error
         * then if it lasts. A pending ICMP error does not: the hidden call has consumed it. */
        attempts = account_sent(sender, offer, messages, (uint32_t)result);
        sender->config->sequences[offer->flow] += attempts;
    }
    sender->attempts[offer->flow] += attempts;
    sender->attempted += attempts;
    sender->pacer.next += attempts;
    ub_add(&sender->stats->attempted_packets, attempts);
    ub_add(&sender->stats->send_calls, 1);
}

/* How late the call was for each message it sent; a message is due with its last datagram. */
static void note_pacing(struct sender *sender, const struct ub_offer *offer, uint64_t sent,
                        uint64_t begun_ns) {
    uint64_t since_start_ns = begun_ns - sender->config->start_ns;
    uint32_t segments = sender->box.segments;
    struct ub_due due = offer->due;
    for (uint64_t packet = 1; packet <= sent; packet++) {
        if (packet % segments == 0 || packet == sent)
            ub_histogram_add(sender->config->pacing, (int64_t)(since_start_ns - due.since_start_ns),
                             1);
        ub_due_next(&due);
    }
}

/* When the next packet is due; with an unlimited rate, now. */
static struct ub_due next_due(const struct sender *sender, uint64_t now_ns) {
    const struct ub_send_config *config = sender->config;
    if (config->rate_pps != 0)
        return ub_due_at(sender->pacer.next, config->rate_pps);
    return (struct ub_due){.since_start_ns = now_ns - config->start_ns};
}

/* SO_SNDTIMEO starts again for each message: on a socket that drains slowly but steadily a call
 * lasts as long as all it offers, regardless of the end and stop. So it offers no more than was
 * sent in the time a call should last, and little at first, when that is unknown. */
static void adapt(struct sender *sender, int result, uint64_t duration_ns) {
    if (duration_ns > CALL_NS) {
        uint64_t fitting = result > 0 ? (uint64_t)result * CALL_NS / duration_ns : 0;
        sender->limit = fitting > 1 ? (uint32_t)fitting : 1;
    } else if (sender->limit < sender->batch && result == (int)sender->limit &&
               duration_ns < CALL_NS / 2) {
        sender->limit = sender->limit < sender->batch / 2 ? 2 * sender->limit : sender->batch;
    }
}

/* One call; the time after it. */
static uint64_t send_offer(struct sender *sender, struct ub_offer *offer, uint64_t begun_ns) {
    const struct ub_send_config *config = sender->config;
    const struct ub_send_way *way = sender->way;
    offer->due = next_due(sender, begun_ns);
    uint32_t messages = way->fill(&sender->box, offer);
    int result = way->offer(&sender->box, offer, messages);
    uint64_t now_ns = ub_now_ns();
    uint64_t sent_before = sender->stats->sent_packets;
    account_call(sender, offer, messages, result);
    if (!way->returns)
        adapt(sender, result, now_ns - begun_ns);
    uint64_t sent = sender->stats->sent_packets - sent_before;
    if (config->pacing != NULL && config->rate_pps != 0)
        note_pacing(sender, offer, sent, begun_ns);
    if (config->milliseconds != NULL)
        ub_milliseconds_add(config->milliseconds, now_ns - config->start_ns, (uint32_t)sent);
    if (way->offered != NULL)
        way->offered(&sender->box, offer, messages, result);
    return now_ns;
}

/* What is still owed when the loop ends by itself is given up, too. */
static void give_up_rest(struct sender *sender) {
    const struct ub_send_config *config = sender->config;
    uint64_t remainder = config->count == 0 ? UINT64_MAX : config->count - sender->attempted;
    if (config->rate_pps == 0 || ub_stopped(config->control))
        return;
    uint64_t owed = ub_pacer_owed(&sender->pacer, config->end_ns);
    ub_pacer_give_up(&sender->pacer, owed < remainder ? owed : remainder,
                     &sender->stats->stalled_packets);
}

static void send_loop(struct sender *sender) {
    const struct ub_send_config *config = sender->config;
    struct ub_send_stats *stats = sender->stats;
    struct ub_offer offer = {0};
    uint64_t now = ub_now_ns();
    while (!finished(sender, now)) {
        choose(sender, &offer, now);
        if (offer.packets == 0) {
            if (now >= config->end_ns)
                break;
            now = ub_pacer_wait(&sender->pacer, now, message_packets(sender, offer.flow),
                                config->control);
            continue;
        }
        offer.packets = sender->way->ready(&sender->box, &offer, now);
        if (offer.packets == 0) {
            now = ub_now_ns();
            continue;
        }
        int first = stats->first_ns == 0;
        if (first)
            ub_set(&stats->first_ns, now);
        /* The time after a call is the time before the next: one clock read per call. */
        now = send_offer(sender, &offer, now);
        if (first && config->rate_pps != 0)
            ub_set(&stats->first_packets, stats->sent_packets);
        ub_set(&stats->last_ns, now);
        ub_set(&stats->last_cpu, (uint64_t)sched_getcpu() + 1);
        offer.flow++;
    }
}

/* What was due and put where the kernel takes it, and is not taken yet: for a second at most. */
static void send_rest(struct sender *sender) {
    struct ub_offer offer = {0};
    uint64_t now = ub_now_ns(), deadline = now + UB_SECOND_NS;
    while (sender->box.left != 0 && !ub_stopped(sender->config->control) && now < deadline) {
        choose(sender, &offer, now);
        now = send_offer(sender, &offer, now);
        ub_set(&sender->stats->last_ns, now);
    }
}

/* Everything the loop needs: 0 or -errno. */
static int prepare(struct sender *sender) {
    sender->attempts = ub_allocate(sender->config->flow_count * sizeof *sender->attempts);
    return sender->attempts == NULL ? -ENOMEM : sender->way->prepare(&sender->box, sender->batch);
}

int ub_send(const struct ub_send_config *config, struct ub_send_stats *stats) {
    if (stats == NULL || ub_send_check(config) != NULL)
        return -EINVAL;
    struct sender sender = {.config = config,
                            .stats = stats,
                            .way = ub_send_way_of(config->call),
                            .box = ub_outbox_of(config, stats)};
    sender.batch =
        config->batch < sender.way->messages_max ? config->batch : sender.way->messages_max;
    sender.limit =
        sender.way->returns || sender.batch < FIRST_MESSAGES ? sender.batch : FIRST_MESSAGES;
    int error = prepare(&sender);
    if (error == 0) {
        ub_pacer_init(&sender.pacer, config);
        wait_for_start(config);
        send_loop(&sender);
        send_rest(&sender);
        give_up_rest(&sender);
        if (sender.way->finish != NULL)
            sender.way->finish(&sender.box);
    }
    sender.way->release(&sender.box);
    free(sender.attempts);
    return error;
}
