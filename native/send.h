/*
 * The ways of sending: one call that offers messages.
 *
 * Must never hold anything a receiver needs.
 */
#ifndef UB_SEND_H
#define UB_SEND_H

#include "loop.h"

#include <sys/socket.h>

struct ub_send_way {
    /* Offers messages by one call: how many the kernel took, or -errno if it took none. */
    int (*offer)(int socket, struct mmsghdr *messages, uint32_t count, int flags);
    uint32_t messages_max; /* that one call can carry */
};

/* NULL: no such way. */
const struct ub_send_way *ub_send_way_of(uint32_t call);

#endif
