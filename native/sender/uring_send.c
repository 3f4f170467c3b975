/*
 * Sending by an io_uring: a batch of messages is one chain of entries, submitted by one call.
 *
 * Must never let a message go before one that the kernel did not take: without the chain, those
 * behind it would overtake it, and a number would be missing. Must never send by a bundle
 * (IORING_RECVSEND_BUNDLE, Linux 6.10), which makes one datagram of all its buffers.
 */
#include "send.h"
#include "uring.h"

#include <poll.h>
#include <stdlib.h>

static int prepare(struct ub_outbox *box, uint32_t batch) {
    int error = ub_outbox_prepare(box, batch);
    if (error != 0)
        return error;
    struct ub_uring *ring = ub_allocate(sizeof *ring);
    if (ring == NULL)
        return -ENOMEM;
    ring->descriptor = -1;
    box->own = ring;
    return ub_uring_open(ring, batch, batch);
}

static void release(struct ub_outbox *box) {
    if (box->own != NULL)
        ub_uring_close(box->own);
    free(box->own);
    ub_outbox_release(box);
}

/* With MSG_DONTWAIT it completes as soon as it is issued; otherwise one that has to wait would let
 * the call wait with it, whatever the end and stop. */
static void put_message(struct ub_uring_sqe *entry, int socket, const struct msghdr *message) {
    entry->fd = socket;
    entry->op_flags = MSG_DONTWAIT;
    if (message->msg_controllen != 0) {
        entry->opcode = IORING_OP_SENDMSG;
        entry->addr = (uintptr_t)message;
        entry->len = 1;
    } else {
        entry->opcode = IORING_OP_SEND;
        entry->addr = (uintptr_t)message->msg_iov->iov_base;
        entry->len = (uint32_t)message->msg_iov->iov_len;
    }
}

/* Waits for the completions of `entries`. Returns how many messages the kernel took before the
 * first that it did not, or -errno if that is the first of all. */
static int await(struct ub_uring *ring, uint32_t entries) {
    uint32_t taken = entries;
    int error = 0;
    for (uint32_t completed = 0; completed < entries;) {
        const struct ub_uring_cqe *completion = ub_uring_completed(ring);
        if (completion == NULL) {
            int entered = ub_uring_enter(ring, entries - completed, 0);
            if (entered < 0 && entered != -EINTR)
                return entered;
            continue;
        }
        /* Those behind it in the chain are cancelled. */
        if (completion->res < 0 && completion->user_data < taken) {
            taken = (uint32_t)completion->user_data;
            error = completion->res;
        }
        ub_uring_seen(ring);
        completed++;
    }
    return taken != 0 ? (int)taken : error;
}

static int offer_chain(struct ub_uring *ring, int socket, const struct mmsghdr *messages,
                       uint32_t count) {
    for (uint32_t index = 0; index < count; index++) {
        struct ub_uring_sqe *entry = ub_uring_next(ring);
        put_message(entry, socket, &messages[index].msg_hdr);
        entry->flags = index + 1 < count ? IOSQE_IO_LINK : 0;
        entry->user_data = index;
    }
    int submitted = ub_uring_enter(ring, count, 0);
    /* Short of memory the kernel takes a part, and the chain ends with it. */
    ub_uring_withdraw(ring);
    return submitted > 0 ? await(ring, (uint32_t)submitted) : submitted;
}

/* As a blocking call waits for room in the socket's buffer. */
static int has_room(int socket) {
    struct pollfd room = {.fd = socket, .events = POLLOUT};
    return poll(&room, 1, UB_SLICE_MS) > 0;
}

/* Like sendmmsg(2): until all are taken, or one is refused. */
static int offer_messages(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages) {
    int socket = box->config->sockets[offer->flow], waited = 0;
    uint32_t taken = 0;
    for (;;) {
        const struct mmsghdr *next = box->messages + box->first_slot + taken;
        int result = offer_chain(box->own, socket, next, messages - taken);
        if (result > 0) {
            taken += (uint32_t)result;
            waited = 0;
        }
        int again = result == -EAGAIN && !waited && has_room(socket);
        if (taken == messages || (result < 0 && !again))
            return taken != 0 ? (int)taken : result;
        waited = result < 0;
    }
}

const struct ub_send_way ub_uring_send_way = {.prepare = prepare,
                                              .ready = ub_outbox_ready,
                                              .fill = ub_outbox_fill,
                                              .offer = offer_messages,
                                              .offered = ub_outbox_offered,
                                              .release = release,
                                              .messages_max = UB_BATCH_MAX};
