/*
 * Zero-copy sending: which messages the kernel still reads, and when it has completed them.
 *
 * Owns the completions of MSG_ZEROCOPY (Documentation/networking/msg_zerocopy.rst). Must never let
 * a slot be filled again before its completion: the datagrams on their way would change.
 *
 * Completions of a socket are numbered by message, and come as ranges, in any order. Every message
 * the kernel took has a number, and so has one it refused only after it had built the packet (EPERM
 * by netfilter, EINVAL and EIO by GSO): that one completes before the call returns, so completions
 * are read after every call that did not take all.
 */
#include "zerocopy.h"

#include <linux/errqueue.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { BANKS_MIN = 2, SLOTS = 128 };

int ub_zerocopy_prepare(struct ub_zerocopy *zerocopy, const struct ub_send_config *config,
                        struct ub_send_stats *stats, uint32_t batch) {
    uint32_t banks = SLOTS / batch;
    if (banks < BANKS_MIN)
        banks = BANKS_MIN;
    *zerocopy =
        (struct ub_zerocopy){.config = config, .stats = stats, .banks = banks, .batch = batch};
    zerocopy->slots = ub_allocate((size_t)banks * batch * sizeof *zerocopy->slots);
    return zerocopy->slots == NULL ? -ENOMEM : 0;
}

void ub_zerocopy_release(struct ub_zerocopy *zerocopy) {
    free(zerocopy->slots);
}

/* Notes that the messages first .. last of the flow are completed. Slots are searched from the
 * oldest bank on, where they usually are. */
static void complete(struct ub_zerocopy *zerocopy, uint32_t flow, uint32_t first, uint32_t last,
                     uint64_t *counter) {
    uint32_t slots = zerocopy->banks * zerocopy->batch;
    uint32_t count = last - first + 1;
    uint32_t completed = 0;
    for (uint32_t index = 0; index < slots && completed < count; index++) {
        uint32_t at = (zerocopy->bank * zerocopy->batch + index) % slots;
        struct ub_zerocopy_slot *slot = &zerocopy->slots[at];
        /* Numbers are 32 bits wide and wrap: within the range by its distance from first. */
        if (!slot->pending || slot->flow != flow || slot->number - first >= count)
            continue;
        slot->pending = 0;
        completed++;
    }
    zerocopy->pending -= completed;
    ub_add(counter, completed);
    uint32_t *next = &zerocopy->config->zerocopy_next[flow];
    if ((int32_t)(last + 1 - *next) > 0)
        *next = last + 1;
}

/* Reads one completion of the flow's socket; 0 if there is none. */
static int read_completion(struct ub_zerocopy *zerocopy, uint32_t flow) {
    /* Error and offender's address: that of IPv6 is longer. */
    union {
        uint8_t bytes[CMSG_SPACE(sizeof(struct sock_extended_err) + 28)];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_control = control.bytes, .msg_controllen = sizeof control};
    if (recvmsg(zerocopy->config->sockets[flow], &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
        return 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL;
         header = CMSG_NXTHDR(&message, header)) {
        struct sock_extended_err error;
        memcpy(&error, CMSG_DATA(header), sizeof error);
        if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY)
            continue;
        complete(zerocopy, flow, error.ee_info, error.ee_data,
                 error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED
                     ? &zerocopy->stats->zerocopy_copied_messages
                     : &zerocopy->stats->zerocopy_messages);
    }
    return 1;
}

/* Reads all completions of the flow's socket; returns whether there were any. */
static int drain(struct ub_zerocopy *zerocopy, uint32_t flow) {
    int any = 0;
    while (read_completion(zerocopy, flow))
        any = 1;
    return any;
}

/* Drains the flow's socket; if it has no completion, waits for one first. */
static void await(struct ub_zerocopy *zerocopy, uint32_t flow) {
    if (drain(zerocopy, flow))
        return;
    struct pollfd errors = {.fd = zerocopy->config->sockets[flow], .events = 0};
    (void)poll(&errors, 1, UB_SLICE_MS);
    (void)drain(zerocopy, flow);
}

/* The first slot from `from` up to `to` that is not completed; `to` if there is none. */
static uint32_t first_pending(const struct ub_zerocopy *zerocopy, uint32_t from, uint32_t to) {
    while (from < to && !zerocopy->slots[from].pending)
        from++;
    return from;
}

int ub_zerocopy_ready(struct ub_zerocopy *zerocopy) {
    uint32_t first = zerocopy->bank * zerocopy->batch;
    uint32_t end = first + zerocopy->batch;
    uint32_t slot = first_pending(zerocopy, first, end);
    if (slot == end)
        return 1;
    await(zerocopy, zerocopy->slots[slot].flow);
    return first_pending(zerocopy, slot, end) == end;
}

void ub_zerocopy_offered(struct ub_zerocopy *zerocopy, uint32_t flow, uint32_t offered,
                         int result) {
    struct ub_zerocopy_slot *slots = zerocopy->slots + zerocopy->bank * zerocopy->batch;
    for (int index = 0; index < result; index++)
        slots[index] =
            (struct ub_zerocopy_slot){flow, zerocopy->config->zerocopy_next[flow]++, .pending = 1};
    if (result > 0) {
        zerocopy->pending += (uint32_t)result;
        zerocopy->bank = (zerocopy->bank + 1) % zerocopy->banks;
    }
    if (result == -ENOBUFS && zerocopy->pending > 0)
        await(zerocopy, flow);
    else if (result < (int)offered)
        (void)drain(zerocopy, flow);
}

void ub_zerocopy_finish(struct ub_zerocopy *zerocopy) {
    uint32_t slots = zerocopy->banks * zerocopy->batch;
    uint64_t deadline_ns = ub_now_ns() + UB_SECOND_NS;
    while (zerocopy->pending > 0) {
        uint32_t flow = zerocopy->slots[first_pending(zerocopy, 0, slots)].flow;
        if (drain(zerocopy, flow))
            continue;
        if (ub_stopped(zerocopy->config->control) || ub_now_ns() >= deadline_ns)
            return;
        await(zerocopy, flow);
    }
}
