/*
 * A way of sending: one send(2) call a message, or sendmsg(2) where it needs a control message.
 *
 * Must never count or decide what comes next.
 */
#include "sending.h"

static int offer(int socket, struct mmsghdr *messages, uint32_t count, int flags) {
    (void)count;
    const struct msghdr *message = &messages[0].msg_hdr;
    ssize_t sent = message->msg_controllen == 0
                       ? send(socket, message->msg_iov->iov_base, message->msg_iov->iov_len, flags)
                       : sendmsg(socket, message, flags);
    return sent < 0 ? -errno : 1;
}

const struct ub_send_way ub_send_send = {offer, 1};
