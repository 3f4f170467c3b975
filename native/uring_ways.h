/*
 * Sending and receiving by an io_uring, for the tables of ways.
 */
#ifndef UB_URING_WAYS_H
#define UB_URING_WAYS_H

#include "receiver/inbox.h"
#include "sender/outbox.h"

int ub_uring_send_prepare(struct ub_outbox *box, const struct ub_send_config *config,
                          struct ub_send_stats *stats, uint32_t slots);
int ub_uring_send_offer(struct ub_outbox *box, const struct ub_send_config *config,
                        const struct ub_offer *offer, uint32_t messages);
void ub_uring_send_release(struct ub_outbox *box);

int ub_uring_receive_prepare(struct ub_inbox *inbox, const struct ub_receive_config *config,
                             uint32_t batch, uint32_t room_bytes);
int ub_uring_receive(struct ub_inbox *inbox, int socket, int flags);
void ub_uring_receive_release(struct ub_inbox *inbox);

#endif
