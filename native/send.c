/*
 * The ways of sending by a socket call: send(2) for each message, sendmmsg(2) for a batch.
 *
 * Owns the table of all ways. Must never count or decide what comes next.
 */
#include "send.h"

/* sendmsg(2) only for messages with a control message. */
static int offer_one(int socket, struct mmsghdr *messages, uint32_t count, int flags) {
    (void)count;
    const struct msghdr *message = &messages[0].msg_hdr;
    ssize_t sent = message->msg_controllen == 0
                       ? send(socket, message->msg_iov->iov_base, message->msg_iov->iov_len, flags)
                       : sendmsg(socket, message, flags);
    return sent < 0 ? -errno : 1;
}

static int offer_batch(int socket, struct mmsghdr *messages, uint32_t count, int flags) {
    int sent = sendmmsg(socket, messages, count, flags);
    return sent < 0 ? -errno : sent;
}

/* A new way of sending is a row here, a file, and a constant of enum ub_send_call. */
static const struct ub_send_way ways[] = {
    [UB_SEND_SENDMMSG] = {.offer = offer_batch, .messages_max = UB_BATCH_MAX},
    [UB_SEND_SEND] = {.offer = offer_one, .messages_max = 1},
};

const struct ub_send_way *ub_send_way_of(uint32_t call) {
    return call < sizeof ways / sizeof *ways ? &ways[call] : NULL;
}
