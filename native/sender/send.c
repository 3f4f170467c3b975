/*
 * The ways of sending: send(2) for each message, sendmmsg(2) for a batch, frames by AF_XDP, and an
 * io_uring.
 *
 * Owns the table of all ways. Must never count or decide what comes next.
 */
#include "send.h"

/* sendmsg(2) only for messages with a control message. */
static int offer_one(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages) {
    (void)messages;
    int socket = box->config->sockets[offer->flow];
    int flags = box->config->zerocopy ? MSG_ZEROCOPY : 0;
    const struct msghdr *message = &box->messages[box->first_slot].msg_hdr;
    ssize_t sent = message->msg_controllen == 0
                       ? send(socket, message->msg_iov->iov_base, message->msg_iov->iov_len, flags)
                       : sendmsg(socket, message, flags);
    return sent < 0 ? -errno : 1;
}

static int offer_batch(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages) {
    int sent = sendmmsg(box->config->sockets[offer->flow], box->messages + box->first_slot,
                        messages, box->config->zerocopy ? MSG_ZEROCOPY : 0);
    return sent < 0 ? -errno : sent;
}

static const struct ub_send_way batch_way = {.prepare = ub_outbox_prepare,
                                             .ready = ub_outbox_ready,
                                             .fill = ub_outbox_fill,
                                             .offer = offer_batch,
                                             .offered = ub_outbox_offered,
                                             .finish = ub_outbox_finish,
                                             .release = ub_outbox_release,
                                             .messages_max = UB_BATCH_MAX,
                                             .zerocopy = 1};
static const struct ub_send_way single_way = {.prepare = ub_outbox_prepare,
                                              .ready = ub_outbox_ready,
                                              .fill = ub_outbox_fill,
                                              .offer = offer_one,
                                              .offered = ub_outbox_offered,
                                              .finish = ub_outbox_finish,
                                              .release = ub_outbox_release,
                                              .messages_max = 1,
                                              .zerocopy = 1};

/* A new way of sending is a file with its hooks, its name in send.h, a row here, a constant of
 * enum ub_send_call, and a row of udpbench/ways.py. */
static const struct ub_send_way *const ways[] = {
    [UB_SEND_SENDMMSG] = &batch_way,
    [UB_SEND_SEND] = &single_way,
    [UB_SEND_AF_XDP] = &ub_xsk_send_way,
    [UB_SEND_URING] = &ub_uring_send_way,
};

const struct ub_send_way *ub_send_way_of(uint32_t call) {
    return call < sizeof ways / sizeof *ways ? ways[call] : NULL;
}
