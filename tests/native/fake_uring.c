/*
 * An io_uring that does as it is told: linked in by -Wl,--wrap for what native/uring.c offers.
 *
 * As it is, the real one, with a ring of completions as short as a test says. With a script the
 * kernel's side is played here: a chain of messages is taken up to one that fails, and what is
 * linked behind it is cancelled; datagrams arrive in buffers as long as there are any.
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "datagram.h"
#include "uring.h"

enum { RING = 1024, COMPLETIONS = 4096, LOG_MAX = 4096 };

struct fake_chain {
    int32_t accepts; /* entries at most, 0: all; or -errno of the call */
    uint32_t takes;  /* messages before the one that fails */
    int32_t error;   /* of that one; 0: none fails */
};

static uint32_t completions_at_most;
static int32_t open_error, give_error;
static int plays_chains, plays_events;
static const struct fake_chain *chains;
static uint32_t chain_count, chain_next;
static uint64_t taken[LOG_MAX];
static uint32_t taken_count;
static const int32_t *events;
static uint32_t event_count, event_next;
static uint64_t arrival;

static struct ub_uring_sqe entries[RING];
static struct ub_uring_cqe completions[COMPLETIONS];
static uint32_t entries_head, entries_tail, entries_flags, completions_head, completions_tail;
static struct ub_uring_buf *buffers;
static uint32_t buffer_count, buffers_head, asked;

/* ---- what a test says ------------------------------------------------------------------------ */

void fake_uring_real(uint32_t at_most);
void fake_uring_real(uint32_t at_most) {
    completions_at_most = at_most;
    plays_chains = plays_events = 0;
    open_error = give_error = 0;
}

/* What the kernel refuses a ring and its buffers with; 0: neither. */
void fake_uring_refuse(int32_t opening, int32_t giving);
void fake_uring_refuse(int32_t opening, int32_t giving) {
    open_error = opening;
    give_error = giving;
}

/* The script stays the caller's; when it is over, all is taken. */
void fake_uring_chains(const struct fake_chain *script, uint32_t count);
void fake_uring_chains(const struct fake_chain *script, uint32_t count) {
    fake_uring_real(0);
    plays_chains = 1;
    chains = script;
    chain_count = count;
    chain_next = taken_count = 0;
}

/* Sequence numbers of the messages that were taken, in order. */
uint32_t fake_uring_taken(uint64_t *to);
uint32_t fake_uring_taken(uint64_t *to) {
    memcpy(to, taken, sizeof taken);
    return taken_count;
}

/* Above 0: so many datagrams; 0: one without payload; below: -errno, which ends the request. */
void fake_uring_events(const int32_t *script, uint32_t count);
void fake_uring_events(const int32_t *script, uint32_t count) {
    fake_uring_real(0);
    plays_events = 1;
    events = script;
    event_count = count;
    event_next = 0;
    arrival = 0;
}

/* ---- the kernel's side ----------------------------------------------------------------------- */

static void post(uint64_t number, int32_t result, uint32_t flags) {
    completions[completions_tail++ % COMPLETIONS] = (struct ub_uring_cqe){number, result, flags};
}

static const uint8_t *payload_of(const struct ub_uring_sqe *entry) {
    const struct msghdr *message = (const void *)(uintptr_t)entry->addr;
    return entry->opcode == IORING_OP_SENDMSG ? message->msg_iov->iov_base : (const void *)message;
}

static int play_chain(uint32_t submitted) {
    struct fake_chain step = {0, 0, 0};
    if (chain_next < chain_count)
        step = chains[chain_next++];
    if (step.accepts < 0)
        return step.accepts;
    if (step.accepts != 0 && (uint32_t)step.accepts < submitted)
        submitted = (uint32_t)step.accepts;
    int cancels = 0;
    for (uint32_t index = 0; index < submitted; index++, entries_head++) {
        const struct ub_uring_sqe *entry = &entries[entries_head % RING];
        struct ub_header header;
        int fails = step.error != 0 && index == step.takes;
        post(entry->user_data, cancels ? -ECANCELED : fails ? -step.error : 1, 0);
        if (!cancels && !fails && taken_count < LOG_MAX) {
            ub_header_read(payload_of(entry), &header);
            taken[taken_count++] = header.sequence;
        }
        cancels = (cancels || fails) && (entry->flags & IOSQE_IO_LINK);
    }
    return (int)submitted;
}

static void deliver(void) {
    struct ub_uring_buf *buffer = &buffers[buffers_head++ % buffer_count];
    uint8_t *bytes = (uint8_t *)(uintptr_t)buffer->addr;
    memset(bytes, 0, buffer->len);
    ub_header_write(bytes, 0x1234abcd, 0, arrival++, 0);
    post(0, 32,
         IORING_CQE_F_MORE | IORING_CQE_F_BUFFER |
             (uint32_t)buffer->bid << IORING_CQE_BUFFER_SHIFT);
}

static void end(int32_t result) {
    asked = 0;
    post(0, result, 0);
}

static int play_events(uint32_t submitted) {
    for (uint32_t index = 0; index < submitted; index++) {
        const struct ub_uring_sqe *entry = &entries[entries_head++ % RING];
        if (entry->opcode == IORING_OP_RECV)
            asked = 1;
        else if (asked)
            end(-ECANCELED);
    }
    while (asked && event_next < event_count) {
        int32_t event = events[event_next++];
        for (int32_t left = event; asked && left > 0; left--) {
            if (buffers == NULL || buffers_head == buffers[0].tail) {
                /* Without a buffer nothing is taken: the rest comes with the next request. */
                ((int32_t *)events)[--event_next] = left;
                end(-ENOBUFS);
            } else {
                deliver();
            }
        }
        if (event <= 0)
            end(event);
    }
    return (int)submitted;
}

/* ---- what is wrapped ------------------------------------------------------------------------- */

int __real_ub_uring_open(struct ub_uring *ring, uint32_t entry_count, uint32_t completion_count);
int __wrap_ub_uring_open(struct ub_uring *ring, uint32_t entry_count, uint32_t completion_count);
int __wrap_ub_uring_open(struct ub_uring *ring, uint32_t entry_count, uint32_t completion_count) {
    if (open_error != 0) {
        *ring = (struct ub_uring){.descriptor = -1};
        return -open_error;
    }
    if (!plays_chains && !plays_events) {
        if (completions_at_most != 0)
            entry_count = completion_count = completions_at_most;
        return __real_ub_uring_open(ring, entry_count, completion_count);
    }
    entries_head = entries_tail = completions_head = completions_tail = asked = 0;
    *ring = (struct ub_uring){.descriptor = INT32_MAX,
                              .entry_count = RING,
                              .completion_mask = COMPLETIONS - 1,
                              .entries_head = &entries_head,
                              .entries_tail = &entries_tail,
                              .entries_flags = &entries_flags,
                              .completions_head = &completions_head,
                              .completions_tail = &completions_tail,
                              .entries = entries,
                              .completions = completions};
    return 0;
}

void __real_ub_uring_close(struct ub_uring *ring);
void __wrap_ub_uring_close(struct ub_uring *ring);
void __wrap_ub_uring_close(struct ub_uring *ring) {
    if (ring->descriptor != INT32_MAX)
        __real_ub_uring_close(ring);
}

int __real_ub_uring_give_buffers(struct ub_uring *ring, struct ub_uring_buf *own, uint32_t count);
int __wrap_ub_uring_give_buffers(struct ub_uring *ring, struct ub_uring_buf *own, uint32_t count);
int __wrap_ub_uring_give_buffers(struct ub_uring *ring, struct ub_uring_buf *own, uint32_t count) {
    if (give_error != 0)
        return -give_error;
    if (ring->descriptor != INT32_MAX)
        return __real_ub_uring_give_buffers(ring, own, count);
    buffers = own;
    buffer_count = count;
    buffers_head = 0;
    return 0;
}

int __real_ub_uring_take_buffers(struct ub_uring *ring);
int __wrap_ub_uring_take_buffers(struct ub_uring *ring);
int __wrap_ub_uring_take_buffers(struct ub_uring *ring) {
    if (ring->descriptor != INT32_MAX)
        return __real_ub_uring_take_buffers(ring);
    buffers = NULL;
    return 0;
}

int __real_ub_uring_enter(struct ub_uring *ring, uint32_t least, uint64_t wait_ns);
int __wrap_ub_uring_enter(struct ub_uring *ring, uint32_t least, uint64_t wait_ns);
int __wrap_ub_uring_enter(struct ub_uring *ring, uint32_t least, uint64_t wait_ns) {
    if (ring->descriptor != INT32_MAX)
        return __real_ub_uring_enter(ring, least, wait_ns);
    uint32_t submitted = ring->tail - entries_head;
    if (plays_events) {
        (void)play_events(submitted);
        return least != 0 && completions_head == completions_tail ? -ETIME : (int)submitted;
    }
    return submitted != 0 ? play_chain(submitted) : 0;
}
