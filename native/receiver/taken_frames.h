/*
 * Receiving frames by AF_XDP: whole ones, that an XDP program took before the kernel's stack.
 */
#ifndef UB_TAKEN_FRAMES_H
#define UB_TAKEN_FRAMES_H

#include "inbox.h"

/* What `af_xdp` needs of a config that other ways do not; NULL: none is refused. */
const char *ub_taken_check(const struct ub_receive_config *config);

int ub_taken_prepare(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                     uint32_t room_bytes);

/* Points the messages at the datagrams of the oldest frames, and gives those of the call before
 * back: how many, or -EAGAIN. */
int ub_taken_receive(struct ub_inbox *inbox, int socket, int flags);

#endif
