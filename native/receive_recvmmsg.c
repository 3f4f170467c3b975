/*
 * A way of receiving: one recvmmsg(2) call a batch.
 *
 * Must never decide what a datagram counts as.
 */
#include "receiving.h"

static int receive(struct ub_inbox *inbox, int socket, int flags) {
    /* WAITFORONE blocks for the first message only, and SO_RCVTIMEO bounds that. The call's own
     * timeout would not: it is looked at only after a datagram (net/socket.c, do_recvmmsg). An
     * error behind a first datagram is kept by the kernel, and returned by the next call. */
    int messages =
        recvmmsg(socket, inbox->messages, inbox->batch, flags | MSG_TRUNC | MSG_WAITFORONE, NULL);
    return messages < 0 ? -errno : messages;
}

const struct ub_receive_way ub_receive_recvmmsg = {receive, UB_BATCH_MAX};
