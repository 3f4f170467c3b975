/*
 * A way of receiving: one recvmmsg(2) call a batch, each message one datagram.
 *
 * Owns the messages and their buffers. Must never decide what a datagram counts as.
 */
#include "internal.h"

#include <stdlib.h>
#include <sys/socket.h>

struct batch {
    struct mmsghdr *messages;
    struct iovec *vectors;
    uint8_t *room;
};

static void release(void *memory) {
    struct batch *batch = memory;
    free(batch->messages);
    free(batch->vectors);
    free(batch->room);
    free(batch);
}

static void *prepare(const struct ub_receive_config *config) {
    struct batch *batch = ub_allocate(sizeof *batch);
    if (batch == NULL)
        return NULL;
    size_t stride_bytes = ub_lines_bytes(config->room_bytes);
    batch->messages = ub_allocate(config->batch * sizeof *batch->messages);
    batch->vectors = ub_allocate(config->batch * sizeof *batch->vectors);
    batch->room = ub_allocate(config->batch * stride_bytes);
    if (batch->messages == NULL || batch->vectors == NULL || batch->room == NULL) {
        release(batch);
        return NULL;
    }
    for (uint32_t index = 0; index < config->batch; index++) {
        batch->vectors[index] =
            (struct iovec){batch->room + index * stride_bytes, config->room_bytes};
        batch->messages[index].msg_hdr.msg_iov = &batch->vectors[index];
        batch->messages[index].msg_hdr.msg_iovlen = 1;
    }
    return batch;
}

static int receive(void *memory, const struct ub_receive_config *config) {
    struct batch *batch = memory;
    /* WAITFORONE blocks for the first message only, and SO_RCVTIMEO bounds that. The call's own
     * timeout would not: it is looked at only after a datagram (net/socket.c, do_recvmmsg). An
     * error behind a first datagram is kept by the kernel, and returned by the next call. */
    int messages = recvmmsg(config->socket, batch->messages, config->batch, MSG_WAITFORONE, NULL);
    return messages < 0 ? -errno : messages;
}

static void account(const void *memory, uint32_t messages, struct ub_tally *tally) {
    const struct batch *batch = memory;
    for (uint32_t index = 0; index < messages; index++) {
        const struct mmsghdr *message = &batch->messages[index];
        ub_tally_datagram(tally, message->msg_hdr.msg_iov->iov_base, message->msg_len,
                          (message->msg_hdr.msg_flags & MSG_TRUNC) != 0);
    }
}

const struct ub_receive_way ub_receive_recvmmsg = {prepare, receive, account, release};
