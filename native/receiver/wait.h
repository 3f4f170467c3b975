/*
 * The ways of waiting: from which socket to receive next, and when.
 */
#ifndef UB_WAIT_H
#define UB_WAIT_H

#include "loop.h"

#define UB_WAIT_BIT(wait) (UINT32_C(1) << (wait))

/* The position of a loop in its round over the sockets. */
struct ub_wait_state {
    const struct ub_receive_config *config;
    struct ub_receive_stats *stats;
    uint32_t waits; /* a UB_WAIT_BIT for each wait that the way of receiving allows */
    uint32_t batch;
    uint32_t next;      /* of the sockets, or of the ready ones */
    uint32_t ready;     /* sockets that epoll reported */
    uint32_t full;      /* batches in this round */
    uint32_t naps;      /* of auto: 1 while it naps, 0 while it waits for each datagram */
    uint32_t brought;   /* of auto: messages since its nap, or calls with messages since it waits */
    uint32_t in_span;   /* of auto: messages since span_ns */
    int breaks_silence; /* of auto: what comes now follows a long silence */
    int flags;          /* of the next receiving call */
    int epoll;          /* -1: none */
    uint64_t until_ns;  /* end of a nap */
    uint64_t nap_ns;    /* of auto: how long that nap is */
    uint64_t broken_ns; /* of auto: when a long silence was broken last */
    uint64_t span_ns;   /* of auto: since when messages are counted */
    uint64_t apart_ns;  /* of auto: from message to message, where they came fastest lately */
    uint64_t heard_ns;  /* of auto: when a call last brought messages */
    void *events;
};

struct ub_wait_way {
    /* What the wait needs besides sockets: 0 or -errno; NULL: nothing. */
    int (*prepare)(struct ub_wait_state *wait);
    /* The socket to receive from, or -1 if none became ready within a slice. */
    int (*next)(struct ub_wait_state *wait);
    /* Gets the number of messages received from it; NULL: not needed. */
    void (*received)(struct ub_wait_state *wait, uint32_t messages);
    void (*release)(struct ub_wait_state *wait);
    int flags; /* of the receiving call, at first */
    uint32_t sockets_max;
};

/* NULL: no such way. */
const struct ub_wait_way *ub_wait_way_of(uint32_t wait);

#endif
