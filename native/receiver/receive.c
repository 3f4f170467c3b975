/*
 * The ways of receiving: recv(2) for each message, recvmmsg(2) for a batch, an io_uring, and frames
 * by AF_XDP.
 *
 * Owns the table of all ways. Must never decide what a datagram counts as.
 */
#include "receive.h"

/* recvmsg(2) only for messages that bring more than bytes. */
static int receive_one(struct ub_inbox *inbox, int socket, int flags) {
    struct mmsghdr *message = &inbox->messages[0];
    ssize_t length = inbox->controls == NULL && inbox->names == NULL
                         ? recv(socket, inbox->room, inbox->room_bytes, flags | MSG_TRUNC)
                         : recvmsg(socket, &message->msg_hdr, flags | MSG_TRUNC);
    if (length < 0)
        return -errno;
    message->msg_len = (uint32_t)length;
    return 1;
}

static int receive_batch(struct ub_inbox *inbox, int socket, int flags) {
    /* WAITFORONE blocks for the first message only, and SO_RCVTIMEO bounds that. The call's own
     * timeout would not: it is looked at only after a datagram (net/socket.c, do_recvmmsg). An
     * error behind a first datagram is kept by the kernel, and returned by the next call. */
    int messages =
        recvmmsg(socket, inbox->messages, inbox->batch, flags | MSG_TRUNC | MSG_WAITFORONE, NULL);
    return messages < 0 ? -errno : messages;
}

static const struct ub_receive_way batch_way = {.prepare = ub_inbox_prepare,
                                                .receive = receive_batch,
                                                .release = ub_inbox_release,
                                                .messages_max = UB_BATCH_MAX,
                                                .controls = 1,
                                                .waits = UB_WAITS_ALL};
static const struct ub_receive_way single_way = {.prepare = ub_inbox_prepare,
                                                 .receive = receive_one,
                                                 .release = ub_inbox_release,
                                                 .messages_max = 1,
                                                 .controls = 1,
                                                 .waits = UB_WAITS_ALL};

/* A new way of receiving is a file with its hooks, its name in receive.h, a row here, and a
 * constant of enum ub_receive_call. */
static const struct ub_receive_way *const ways[] = {
    [UB_RECEIVE_RECVMMSG] = &batch_way,
    [UB_RECEIVE_RECV] = &single_way,
    [UB_RECEIVE_URING] = &ub_uring_receive_way,
    [UB_RECEIVE_AF_XDP] = &ub_xsk_receive_way,
};

const struct ub_receive_way *ub_receive_way_of(uint32_t call) {
    return call < sizeof ways / sizeof *ways ? ways[call] : NULL;
}
