/*
 * The messages that a sender offers.
 *
 * Owns the contents of datagrams, and which of its slots may be filled. Must never make the call
 * that offers, count, or decide what is next.
 */
#ifndef UB_OUTBOX_H
#define UB_OUTBOX_H

#include "pacer.h"
#include "zerocopy.h"

#include <sys/socket.h>

/* Slots, each a message with the payloads of its datagrams side by side. */
struct ub_outbox {
    const struct ub_send_config *config;
    struct ub_send_stats *stats;
    struct mmsghdr *messages;
    struct iovec *vectors;
    uint8_t *controls; /* UDP_SEGMENT; NULL without GSO */
    uint8_t *payloads;
    size_t stride_bytes;
    uint32_t segments;   /* datagrams of a whole message */
    uint32_t turns;      /* how many of the config's datagrams messages begin with, in turn */
    uint32_t last;       /* a message ends with the datagram that is `last` places after the one it
                            begins with in the config */
    uint32_t varies;     /* messages differ in more than the header */
    uint32_t headers;    /* the datagrams have our header */
    uint32_t first_slot; /* slot of the next call's first message */
    struct ub_zerocopy zerocopy; /* only with zerocopy */
    /* Of a way that fills memory of its own: */
    void *own;
    uint32_t left; /* messages that were offered and not taken, and are offered again unchanged */
    uint32_t left_flow; /* their flow */
};

/* One call: packets of a flow, and when they were due. With a step of 0 all have one time. */
struct ub_offer {
    uint32_t flow;
    uint32_t packets;
    struct ub_due due; /* of the first packet */
};

/* An outbox without slots, until ub_outbox_prepare. */
struct ub_outbox ub_outbox_of(const struct ub_send_config *config, struct ub_send_stats *stats);

/* The payload bytes of the first `messages` of those that were filled last; they hold `packets`. */
uint64_t ub_outbox_bytes(const struct ub_outbox *box, uint32_t messages, uint64_t packets);

/* Hooks (send.h) of a way whose call takes the outbox's `messages`. */
int ub_outbox_prepare(struct ub_outbox *box, uint32_t batch);
uint32_t ub_outbox_ready(struct ub_outbox *box, const struct ub_offer *offer, uint64_t now_ns);
uint32_t ub_outbox_fill(struct ub_outbox *box, const struct ub_offer *offer);
void ub_outbox_offered(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages,
                       int result);
void ub_outbox_finish(struct ub_outbox *box);
void ub_outbox_release(struct ub_outbox *box);

#endif
