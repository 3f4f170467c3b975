/*
 * Receiving frames by AF_XDP: whole frames that an XDP program redirected before the stack.
 */
#ifndef UB_TAKEN_FRAMES_H
#define UB_TAKEN_FRAMES_H

#include "inbox.h"

/* The field that `af_xdp` refuses in addition to other ways; NULL: none. */
const char *ub_taken_check(const struct ub_receive_config *config);

int ub_taken_prepare(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                     uint32_t room_bytes);

/* Points the messages at the datagrams of the oldest frames, and gives those of the call before
 * back: how many, -EAGAIN, or the -errno of waking a driver. */
int ub_taken_receive(struct ub_inbox *inbox, int socket, int flags);

#endif
