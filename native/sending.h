/*
 * What sender.c, the ways of sending and zero copy share.
 *
 * Owns the shape of a way of sending and of the messages it offers. Must never hold anything a
 * receiver needs.
 */
#ifndef UB_SENDING_H
#define UB_SENDING_H

#include "internal.h"

#include <sys/socket.h>

/* ---- a way of sending ------------------------------------------------------------------------ */

struct ub_send_way {
    /* Offers messages by one call; how many the kernel took, or -errno where it took none. */
    int (*offer)(int socket, struct mmsghdr *messages, uint32_t count, int flags);
    uint32_t messages_max; /* that one call can carry */
};

extern const struct ub_send_way ub_send_send;
extern const struct ub_send_way ub_send_sendmmsg;

/* ---- messages -------------------------------------------------------------------------------- */

/* Slots, each a message with the payloads of its datagrams side by side. */
struct ub_outbox {
    struct mmsghdr *messages;
    struct iovec *vectors;
    uint8_t *controls; /* UDP_SEGMENT; NULL without GSO */
    uint8_t *payloads;
    size_t stride_bytes;
    uint32_t segments; /* datagrams of a whole message */
    uint32_t tail_bytes;
    uint32_t shortened; /* the slot whose message is not whole; UINT32_MAX: none */
};

int ub_outbox_make(struct ub_outbox *box, const struct ub_send_config *config, uint32_t slots);
void ub_outbox_release(struct ub_outbox *box);

/* What one call is to offer: packets of a flow, made into messages from a slot on, and when they
 * were due. A step of 0 says that all of them have one time. */
struct ub_offer {
    uint32_t flow;
    uint32_t packets;
    uint32_t first_slot;
    uint64_t epoch_to_start_ns; /* what the header's time has more than `due` */
    struct ub_due due;          /* of the first packet */
};

uint32_t ub_outbox_fill(struct ub_outbox *box, const struct ub_send_config *config,
                        const struct ub_offer *offer);

/* ---- zero copy ------------------------------------------------------------------------------- */

struct ub_zerocopy_slot {
    uint32_t flow;
    uint32_t number; /* of its completion */
    uint32_t pending;
};

/* The kernel reads a message's bytes until it reports the completion, so slots are used again by
 * the bank, one bank a call, when all of a bank are completed. */
struct ub_zerocopy {
    const struct ub_send_config *config;
    struct ub_send_stats *stats;
    struct ub_zerocopy_slot *slots;
    uint32_t banks;
    uint32_t batch; /* slots of a bank */
    uint32_t bank;  /* for the next call */
    uint32_t pending;
};

int ub_zerocopy_make(struct ub_zerocopy *zerocopy, const struct ub_send_config *config,
                     struct ub_send_stats *stats, uint32_t batch);
void ub_zerocopy_release(struct ub_zerocopy *zerocopy);
int ub_zerocopy_ready(struct ub_zerocopy *zerocopy);
void ub_zerocopy_offered(struct ub_zerocopy *zerocopy, uint32_t flow, uint32_t offered, int taken);
void ub_zerocopy_finish(struct ub_zerocopy *zerocopy);

#endif
