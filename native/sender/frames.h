/*
 * Sending frames by AF_XDP: whole frames with headers, in memory that the kernel reads.
 */
#ifndef UB_FRAMES_H
#define UB_FRAMES_H

#include "outbox.h"

/* The field that `af_xdp` refuses in addition to other ways; NULL: none. */
const char *ub_frames_check(const struct ub_send_config *config);

int ub_frames_prepare(struct ub_outbox *box, const struct ub_send_config *config,
                      struct ub_send_stats *stats, uint32_t slots);
int ub_frames_ready(struct ub_outbox *box);
int ub_frames_offer(struct ub_outbox *box, const struct ub_send_config *config,
                    const struct ub_offer *offer, uint32_t messages);

/* Waits for frames on their way, a second at most and not after stop, and takes back those that the
 * kernel never took. */
void ub_frames_finish(struct ub_outbox *box, const struct ub_send_config *config);
void ub_frames_release(struct ub_outbox *box);

#endif
