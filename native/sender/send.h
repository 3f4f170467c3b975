/*
 * The ways of sending: one call that offers messages out of an outbox, and the hooks around it.
 *
 * Must never hold anything a receiver needs.
 */
#ifndef UB_SEND_H
#define UB_SEND_H

#include "outbox.h"

struct ub_send_way {
    /* The field of a config that it refuses in addition to what the loop does; NULL: none. */
    const char *(*check)(const struct ub_send_config *config);
    /* Gets what calls with `batch` messages need: 0 or -errno. `release` follows, also after a
     * failure. */
    int (*prepare)(struct ub_outbox *box, uint32_t batch);
    /* How many of the packets may be offered now; 0: none, after a wait of a slice at most. */
    uint32_t (*ready)(struct ub_outbox *box, const struct ub_offer *offer, uint64_t now_ns);
    /* Makes them into messages: how many. Only the last one may be shorter than a whole one. */
    uint32_t (*fill)(struct ub_outbox *box, const struct ub_offer *offer);
    /* Offers messages by one call: how many the kernel took, or -errno if it took none. */
    int (*offer)(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages);
    /* Gets that result once it is counted; NULL: not needed. */
    void (*offered)(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages,
                    int result);
    /* Completes what is in flight; NULL: nothing can be. */
    void (*finish)(struct ub_outbox *box);
    void (*release)(struct ub_outbox *box);
    uint32_t messages_max; /* that one call can carry */
    uint32_t returns;      /* at once, also if it took nothing; else see adapt() in sender.c */
    uint32_t zerocopy;     /* it may send with MSG_ZEROCOPY */
};

extern const struct ub_send_way ub_xsk_send_way, ub_uring_send_way;

/* NULL: no such way. */
const struct ub_send_way *ub_send_way_of(uint32_t call);

#endif
