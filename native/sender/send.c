/*
 * The ways of sending: send(2) for each message, sendmmsg(2) for a batch, frames by AF_XDP, and an
 * io_uring.
 *
 * Owns the table of all ways. Must never count or decide what comes next.
 */
#include "send.h"

#include "frames.h"
#include "uring_ways.h"

/* sendmsg(2) only for messages with a control message. */
static int offer_one(struct ub_outbox *box, const struct ub_send_config *config,
                     const struct ub_offer *offer, uint32_t messages) {
    (void)messages;
    int socket = config->sockets[offer->flow], flags = config->zerocopy ? MSG_ZEROCOPY : 0;
    const struct msghdr *message = &box->messages[offer->first_slot].msg_hdr;
    ssize_t sent = message->msg_controllen == 0
                       ? send(socket, message->msg_iov->iov_base, message->msg_iov->iov_len, flags)
                       : sendmsg(socket, message, flags);
    return sent < 0 ? -errno : 1;
}

static int offer_batch(struct ub_outbox *box, const struct ub_send_config *config,
                       const struct ub_offer *offer, uint32_t messages) {
    int sent = sendmmsg(config->sockets[offer->flow], box->messages + offer->first_slot, messages,
                        config->zerocopy ? MSG_ZEROCOPY : 0);
    return sent < 0 ? -errno : sent;
}

/* A new way of sending is a row here, a file, and a constant of enum ub_send_call. */
static const struct ub_send_way ways[] = {
    [UB_SEND_SENDMMSG] = {.prepare = ub_outbox_prepare,
                          .offer = offer_batch,
                          .release = ub_outbox_release,
                          .messages_max = UB_BATCH_MAX,
                          .zerocopy = 1},
    [UB_SEND_SEND] = {.prepare = ub_outbox_prepare,
                      .offer = offer_one,
                      .release = ub_outbox_release,
                      .messages_max = 1,
                      .zerocopy = 1},
    [UB_SEND_AF_XDP] = {.prepare = ub_frames_prepare,
                        .ready = ub_frames_ready,
                        .offer = ub_frames_offer,
                        .finish = ub_frames_finish,
                        .release = ub_frames_release,
                        .messages_max = UB_BATCH_MAX,
                        .returns = 1},
    [UB_SEND_URING] = {.prepare = ub_uring_send_prepare,
                       .offer = ub_uring_send_offer,
                       .release = ub_uring_send_release,
                       .messages_max = UB_BATCH_MAX},
};

const struct ub_send_way *ub_send_way_of(uint32_t call) {
    return call < sizeof ways / sizeof *ways ? &ways[call] : NULL;
}
