/*
 * The ways of sending: one call that offers messages out of an outbox.
 *
 * Must never hold anything a receiver needs.
 */
#ifndef UB_SEND_H
#define UB_SEND_H

#include "outbox.h"

struct ub_send_way {
    /* Gets what `offer` needs for a number of slots, and a zeroed outbox: 0 or -errno. `release`
     * follows, also after a failure. */
    int (*prepare)(struct ub_outbox *box, const struct ub_send_config *config,
                   struct ub_send_stats *stats, uint32_t slots);
    /* Whether the outbox may be filled; NULL: always. */
    int (*ready)(struct ub_outbox *box);
    /* Offers messages by one call: how many the kernel took, or -errno if it took none. */
    int (*offer)(struct ub_outbox *box, const struct ub_send_config *config,
                 const struct ub_offer *offer, uint32_t messages);
    /* Completes what is in flight; NULL: nothing can be. */
    void (*finish)(struct ub_outbox *box, const struct ub_send_config *config);
    void (*release)(struct ub_outbox *box);
    uint32_t messages_max; /* that one call can carry */
    uint32_t returns;      /* at once, also if it took nothing; else see adapt() in sender.c */
    uint32_t zerocopy;     /* it may send with MSG_ZEROCOPY */
};

/* NULL: no such way. */
const struct ub_send_way *ub_send_way_of(uint32_t call);

#endif
