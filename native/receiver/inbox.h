/*
 * The messages whose buffers a receiver offers to the kernel.
 *
 * Owns their buffers. Must never call the kernel or decide what a datagram counts as.
 */
#ifndef UB_INBOX_H
#define UB_INBOX_H

#include "loop.h"

#include <sys/socket.h>

struct ub_inbox {
    struct mmsghdr *messages;
    struct iovec *vectors;
    uint8_t *controls; /* for UDP_GRO, time stamps and echoes; NULL without */
    uint8_t *names;    /* source addresses, for echoes; NULL without */
    uint8_t *room;
    void *own; /* state of the way of receiving; NULL: none */
    uint32_t batch;
    uint32_t room_bytes; /* of each message; 0 if nothing is copied */
};

int ub_inbox_prepare(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                     uint32_t room_bytes);
void ub_inbox_release(struct ub_inbox *inbox);

/* Offers the room for control messages and names again: the kernel overwrote their sizes with what
 * it used. */
void ub_inbox_renew(struct ub_inbox *inbox, uint32_t messages);

#endif
