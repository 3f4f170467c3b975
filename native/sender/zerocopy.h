/*
 * Zero-copy sending: which messages the kernel still reads.
 */
#ifndef UB_ZEROCOPY_H
#define UB_ZEROCOPY_H

#include "loop.h"

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

/* -ENOMEM if memory is short; the caller releases in any case. */
int ub_zerocopy_prepare(struct ub_zerocopy *zerocopy, const struct ub_send_config *config,
                        struct ub_send_stats *stats, uint32_t batch);
void ub_zerocopy_release(struct ub_zerocopy *zerocopy);

/* Whether the next bank may be filled; waits for a completion, at most a slice. */
int ub_zerocopy_ready(struct ub_zerocopy *zerocopy);

/* Records the result of a call on the next bank: messages that the kernel took, or -errno. */
void ub_zerocopy_offered(struct ub_zerocopy *zerocopy, uint32_t flow, uint32_t offered, int result);

/* Waits for what is not completed yet: a second at most, and not after stop. What remains then
 * shows as messages without a completion, and its bytes may change on their way. */
void ub_zerocopy_finish(struct ub_zerocopy *zerocopy);

#endif
