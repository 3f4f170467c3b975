/*
 * The ways of receiving: one call that fetches messages into an inbox.
 *
 * Must never hold anything a sender needs.
 */
#ifndef UB_RECEIVE_H
#define UB_RECEIVE_H

#include "inbox.h"
#include "wait.h"

/* For ways whose call does not wait by itself. */
#define UB_WAITS_ALL                                                                               \
    (UB_WAIT_BIT(UB_WAIT_BLOCK) | UB_WAIT_BIT(UB_WAIT_EPOLL) | UB_WAIT_BIT(UB_WAIT_SPIN) |         \
     UB_WAIT_BIT(UB_WAIT_NAP) | UB_WAIT_BIT(UB_WAIT_AUTO))

struct ub_receive_way {
    /* The field of a config that it refuses in addition to what the loop does; NULL: none. */
    const char *(*check)(const struct ub_receive_config *config);
    /* Gets what `receive` needs, for `batch` messages of room_bytes each, into a zeroed inbox: 0 or
     * -errno. `release` follows, also after a failure. */
    int (*prepare)(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                   uint32_t room_bytes);
    /* One call with MSG_TRUNC, so that lengths are those on the wire: the number of messages it
     * returned, or -errno. With flags of 0 it blocks for the first message and no longer. */
    int (*receive)(struct ub_inbox *inbox, int socket, int flags);
    void (*release)(struct ub_inbox *inbox);
    uint32_t messages_max; /* that one call can return */
    uint32_t controls;     /* they come with control messages and source addresses */
    uint32_t waits;        /* a UB_WAIT_BIT for each wait it allows; a way that calls and waits in
                              one allows UB_WAIT_BLOCK alone */
};

extern const struct ub_receive_way ub_xsk_receive_way, ub_uring_receive_way;

/* NULL: no such way. */
const struct ub_receive_way *ub_receive_way_of(uint32_t call);

#endif
