/*
 * The messages that a sender offers.
 *
 * Owns the contents of datagrams. Must never call the kernel, count, or decide what is next.
 */
#ifndef UB_OUTBOX_H
#define UB_OUTBOX_H

#include "pacer.h"

#include <netinet/udp.h>
#include <sys/socket.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103 /* include/uapi/linux/udp.h, since Linux 4.18 */
#endif

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
    /* Of a way that fills memory of its own: */
    void *own;
    uint32_t first_slot; /* of the next messages */
    uint32_t left;       /* messages offered, not taken and to be offered again as they are */
    uint32_t left_flow;
};

/* -ENOMEM if memory is short; the caller releases in any case. */
int ub_outbox_prepare(struct ub_outbox *box, const struct ub_send_config *config,
                      struct ub_send_stats *stats, uint32_t slots);
void ub_outbox_release(struct ub_outbox *box);

/* One call: packets of a flow, made into messages from a slot on, and when they were due. A step of
 * 0 gives all of them one time. */
struct ub_offer {
    uint32_t flow;
    uint32_t packets;
    uint32_t first_slot;
    uint64_t epoch_to_start_ns; /* added to `due` for the header's time */
    struct ub_due due;          /* of the first packet */
};

/* Makes the flow's next packets into messages; the number of messages. Only the last one may be
 * shorter than a whole one. */
uint32_t ub_outbox_fill(struct ub_outbox *box, const struct ub_send_config *config,
                        const struct ub_offer *offer);

#endif
