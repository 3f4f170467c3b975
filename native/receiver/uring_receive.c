/*
 * Receiving by an io_uring: one request for each socket that goes on (multishot), and buffers that
 * the kernel fills, one a datagram (provided buffers).
 *
 * Must never let the kernel take a datagram out of its socket that the loop does not count: it may
 * fill as many buffers as a call returns messages, only while it is entered, and none after the
 * last call. What waits then, waits in the socket, whose overflow the kernel counts.
 */
#include "receive.h"
#include "uring.h"

#include <stdlib.h>

enum { GROUP = 0, ENTRIES_MAX = 1024 };
static const uint64_t CANCELLATION = UINT64_MAX;

struct hearing {
    struct ub_uring ring;
    const struct ub_receive_config *config;
    size_t stride_bytes; /* distance of buffers in the inbox's memory */
    struct ub_uring_buf *buffers;
    uint32_t buffer_mask;
    uint16_t buffers_tail;
    uint16_t *held; /* the buffers of the latest call */
    uint32_t held_count;
    uint8_t *asked; /* for each socket, whether its request goes on */
    uint32_t asked_count;
    int error; /* of a request that ended so, behind messages: for the next call */
};

/* ---- buffers --------------------------------------------------------------------------------- */

static void give(struct ub_inbox *inbox, uint16_t number) {
    struct hearing *own = inbox->own;
    struct ub_uring_buf *buffer = &own->buffers[own->buffers_tail++ & own->buffer_mask];
    /* Not as a whole: the tail of the ring lies in the first. */
    buffer->addr = (uintptr_t)(inbox->room + number * own->stride_bytes);
    buffer->len = inbox->room_bytes;
    buffer->bid = number;
}

static void give_back(struct ub_inbox *inbox) {
    struct hearing *own = inbox->own;
    for (uint32_t index = 0; index < own->held_count; index++)
        give(inbox, own->held[index]);
    own->held_count = 0;
    __atomic_store_n(&own->buffers[0].tail, own->buffers_tail, __ATOMIC_RELEASE);
}

static int prepare_buffers(struct ub_inbox *inbox, uint32_t batch) {
    struct hearing *own = inbox->own;
    uint32_t count = 1;
    while (count < batch)
        count *= 2;
    own->stride_bytes = ub_lines_bytes(inbox->room_bytes);
    own->buffer_mask = count - 1;
    own->buffers = ub_uring_map_buffers(count);
    if (own->buffers == NULL)
        return -ENOMEM;
    for (uint32_t number = 0; number < batch; number++)
        own->held[own->held_count++] = (uint16_t)number;
    return ub_uring_give_buffers(&own->ring, own->buffers, count);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A request ends when the buffers are used up, with an error, and with a datagram without payload.
 */
static void ask(struct hearing *own) {
    const struct ub_receive_config *config = own->config;
    for (uint32_t index = 0;
         index < config->socket_count && own->asked_count < config->socket_count; index++) {
        struct ub_uring_sqe *entry = own->asked[index] ? NULL : ub_uring_next(&own->ring);
        if (entry == NULL)
            continue;
        entry->opcode = IORING_OP_RECV;
        entry->flags = IOSQE_BUFFER_SELECT;
        entry->ioprio = IORING_RECV_MULTISHOT;
        entry->op_flags = MSG_TRUNC;
        entry->fd = config->sockets[index];
        entry->buf_group = GROUP;
        entry->user_data = index;
        own->asked[index] = 1;
        own->asked_count++;
    }
}

static void put_message(struct ub_inbox *inbox, uint32_t at,
                        const struct ub_uring_cqe *completion) {
    struct hearing *own = inbox->own;
    uint16_t number = (uint16_t)(completion->flags >> IORING_CQE_BUFFER_SHIFT);
    /* One without payload has no buffer. */
    size_t place = completion->flags & IORING_CQE_F_BUFFER ? number * own->stride_bytes : 0;
    if (completion->flags & IORING_CQE_F_BUFFER)
        own->held[own->held_count++] = number;
    inbox->vectors[at].iov_base = inbox->room + place;
    inbox->messages[at].msg_len = (uint32_t)completion->res;
}

/* Takes completions; returns the number of messages in the inbox. */
static uint32_t collect(struct ub_inbox *inbox, uint32_t messages) {
    struct hearing *own = inbox->own;
    const struct ub_uring_cqe *completion;
    for (; (completion = ub_uring_completed(&own->ring)) != NULL; ub_uring_seen(&own->ring)) {
        if (completion->user_data == CANCELLATION)
            continue;
        if (!(completion->flags & IORING_CQE_F_MORE)) {
            own->asked[completion->user_data] = 0;
            own->asked_count--;
        }
        if (completion->res >= 0)
            put_message(inbox, messages++, completion);
        else if (completion->res != -ENOBUFS)
            own->error = completion->res;
    }
    return messages;
}

/* ---- the way of receiving -------------------------------------------------------------------- */

static int prepare(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                   uint32_t room_bytes) {
    uint32_t sockets = config->socket_count;
    uint32_t entries = sockets < ENTRIES_MAX ? sockets : ENTRIES_MAX;
    /* One without payload more of each socket. */
    int error = ub_inbox_prepare(inbox, config, batch + sockets, room_bytes);
    if (error != 0)
        return error;
    struct hearing *own = inbox->own = ub_allocate(sizeof *own);
    if (own == NULL)
        return -ENOMEM;
    own->config = config;
    own->ring.descriptor = -1;
    own->held = ub_allocate(batch * sizeof *own->held);
    own->asked = ub_allocate(sockets);
    if (own->held == NULL || own->asked == NULL)
        return -ENOMEM;
    /* Requests and their cancellation; a datagram for each buffer, and the end of each request. */
    error = ub_uring_open(&own->ring, entries + 1, batch + 2 * entries + 1);
    return error == 0 ? prepare_buffers(inbox, batch) : error;
}

static int error_of(struct hearing *own) {
    int error = own->error;
    own->error = 0;
    return error;
}

/* One ring hears all sockets. As long as that brings more, which buffers bound, it goes on with
 * what the kernel put off: it takes 33 datagrams of a socket at once (io_uring/net.c,
 * MULTISHOT_MAX_RETRY). Without anything to submit or put off it enters the kernel only to block.
 */
static int receive(struct ub_inbox *inbox, int socket, int flags) {
    (void)socket;
    struct hearing *own = inbox->own;
    struct ub_uring *ring = &own->ring;
    if (own->error != 0)
        return error_of(own);
    give_back(inbox);
    ask(own);
    int blocks = (flags & MSG_DONTWAIT) == 0, result = 0;
    int enters = blocks || ub_uring_unsubmitted(ring) != 0 || ub_uring_pending(ring);
    uint32_t messages = 0;
    while (enters) {
        uint32_t before = *ring->completions_head;
        result = ub_uring_enter(ring, blocks ? 1 : 0, blocks ? UB_SLICE_NS : 0);
        messages = collect(inbox, messages);
        blocks = 0;
        enters = *ring->completions_head != before && ub_uring_pending(ring);
    }
    if (messages != 0)
        return (int)messages;
    if (own->error != 0)
        return error_of(own);
    return result < 0 && result != -ETIME ? result : -EAGAIN;
}

/* To close the ring alone would end them later, while they hold their sockets and so their ports.
 */
static void end_requests(struct ub_inbox *inbox) {
    struct hearing *own = inbox->own;
    struct ub_uring_sqe *entry = ub_uring_next(&own->ring);
    uint64_t deadline_ns = ub_now_ns() + UB_SECOND_NS;
    if (entry == NULL)
        return;
    entry->opcode = IORING_OP_ASYNC_CANCEL;
    entry->op_flags = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;
    entry->user_data = CANCELLATION;
    do {
        (void)ub_uring_enter(&own->ring, 1, UB_SLICE_NS);
        (void)collect(inbox, 0);
    } while (own->asked_count != 0 && ub_now_ns() < deadline_ns);
}

static void release(struct ub_inbox *inbox) {
    struct hearing *own = inbox->own;
    if (own != NULL && own->buffers != NULL) {
        /* First, so that no request can take another datagram. */
        if (ub_uring_take_buffers(&own->ring) == 0)
            end_requests(inbox);
        ub_uring_close(&own->ring);
        ub_uring_unmap_buffers(own->buffers, own->buffer_mask + 1);
    }
    if (own != NULL) {
        ub_uring_close(&own->ring);
        free(own->held);
        free(own->asked);
    }
    free(own);
    ub_inbox_release(inbox);
}

/* It waits by itself; epoll would wait twice. */
const struct ub_receive_way ub_uring_receive_way = {
    .prepare = prepare,
    .receive = receive,
    .release = release,
    .messages_max = UB_BATCH_MAX,
    .waits = UB_WAITS_ALL & ~UB_WAIT_BIT(UB_WAIT_EPOLL),
};
