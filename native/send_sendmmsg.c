/*
 * A way of sending: one sendmmsg(2) call a batch.
 *
 * Must never count or decide what comes next.
 */
#include "sending.h"

static int offer(int socket, struct mmsghdr *messages, uint32_t count, int flags) {
    int taken = sendmmsg(socket, messages, count, flags);
    return taken < 0 ? -errno : taken;
}

const struct ub_send_way ub_send_sendmmsg = {offer, UB_BATCH_MAX};
