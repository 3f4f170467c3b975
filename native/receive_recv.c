/*
 * A way of receiving: one recv(2) call a message, or recvmsg(2) where it brings more than bytes.
 *
 * Must never decide what a datagram counts as.
 */
#include "receiving.h"

static int receive(struct ub_inbox *inbox, int socket, int flags) {
    struct mmsghdr *message = &inbox->messages[0];
    ssize_t length = inbox->controls == NULL && inbox->names == NULL
                         ? recv(socket, inbox->room, inbox->room_bytes, flags | MSG_TRUNC)
                         : recvmsg(socket, &message->msg_hdr, flags | MSG_TRUNC);
    if (length < 0)
        return -errno;
    message->msg_len = (uint32_t)length;
    return 1;
}

const struct ub_receive_way ub_receive_recv = {receive, 1};
