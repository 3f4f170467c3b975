/*
 * The frame of every receiving loop: wait, receive, account, work, until stop.
 *
 * Owns which ways a config selects, and how their counts are recorded. Must never drain the socket
 * after stop: what is queued then, the kernel reports.
 */
#include "read.h"
#include "receive.h"
#include "series.h"
#include "wait.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>

_Static_assert(offsetof(struct ub_receive_stats, last_cpu) == 15 * sizeof(uint64_t), "no padding");

struct receiver {
    const struct ub_receive_config *config;
    struct ub_receive_stats *stats;
    const struct ub_receive_way *call;
    const struct ub_wait_way *wait;
    const struct ub_read_way *read;
    struct ub_inbox inbox;
    struct ub_wait_state wait_state;
    uint8_t *pattern;     /* NULL if nothing is verified */
    int64_t owed_ns;      /* work not spent yet; below 0: spent before it was due */
    int64_t reading_ns;   /* cost of reading the thread's clock */
    uint64_t progress_ns; /* when the loop last made progress, or will after a nap */
    uint64_t drained_ns;  /* when the last round left nothing and none of ours came since; else 0 */
    int left;             /* a call of this round may have left datagrams */
};

/* ---- permitted configs ----------------------------------------------------------------------- */

static const char *check_ways(const struct ub_receive_config *config) {
    const struct ub_receive_way *call = ub_receive_way_of(config->call);
    const struct ub_wait_way *wait = ub_wait_way_of(config->wait);
    if (call == NULL)
        return "call: a way of receiving";
    if (wait == NULL)
        return "wait: a way of waiting";
    if ((call->waits & UB_WAIT_BIT(config->wait)) == 0)
        return "wait: one that the way of receiving allows";
    if (ub_read_way_of(config->read) == NULL)
        return "read: a way of reading";
    if (config->batch == 0 || config->batch > UB_BATCH_MAX)
        return "batch: 1 to UB_BATCH_MAX";
    if (config->room_bytes == 0 || config->room_bytes > UB_ROOM_BYTES_MAX)
        return "room_bytes: 1 to UB_ROOM_BYTES_MAX";
    /* A nap of 0 would be spinning; a day is the maximum without overflow. */
    if ((config->wait == UB_WAIT_NAP || config->wait == UB_WAIT_AUTO) &&
        (config->nap_ns == 0 || config->nap_ns > 86400 * UB_SECOND_NS))
        return "nap_ns: 1 ns to a day";
    if (config->nap_most_ns > 86400 * UB_SECOND_NS)
        return "nap_most_ns: 0 to a day";
    if (config->sockets == NULL)
        return "sockets: not NULL";
    if (config->socket_count == 0 || config->socket_count > UB_SOCKETS_MAX)
        return "socket_count: 1 to UB_SOCKETS_MAX";
    if (config->socket_count > wait->sockets_max)
        return "socket_count: 1 with a wait in the receiving call";
    return NULL;
}

static const char *check_datagrams(const struct ub_receive_config *config) {
    uint32_t least_bytes = ub_read_way_of(config->read)->sees_header ? UB_HEADER_BYTES : 0;
    if (!ub_datagrams_valid(config->datagrams, config->datagram_count, least_bytes))
        return "datagrams: 0 to UB_MESSAGE_BYTES_MAX bytes, from UB_HEADER_BYTES to read headers";
    if (config->flow_count == 0 || config->flow_count > UB_FLOWS_MAX)
        return "flow_count: 1 to UB_FLOWS_MAX";
    return ub_window_check(config->flows, config->window_words);
}

/* Whatever is recorded besides counts must be readable. */
static const char *check_extras(const struct ub_receive_config *config) {
    const struct ub_read_way *read = ub_read_way_of(config->read);
    if (!ub_receive_way_of(config->call)->controls &&
        (config->gro || config->timestamps || config->echo_every != 0))
        return "call: one with control messages, for gro, timestamps and echo_every";
    if (config->work_ns > UB_WORK_NS_MAX)
        return "work_ns: 0 to UB_WORK_NS_MAX";
    if (config->fault > UB_FAULT_EXIT)
        return "fault: an enum ub_fault";
    if (config->echo_every != 0 && !read->sees_header)
        return "echo_every: 0 if no header is read";
    if (config->timestamps && !read->stamps)
        return "timestamps: 0 if no header is read";
    if (config->read == UB_READ_IPERF3 && (config->streams == NULL || config->gro))
        return "streams: not NULL to read iperf3's, and gro 0";
    if (config->read == UB_READ_IPERF3 && config->flow_count < config->socket_count)
        return "flow_count: a flow for each socket at least, to read iperf3's";
    if (config->timestamps && config->stack == NULL)
        return "stack: not NULL with timestamps";
    if (config->timestamps && config->application == NULL)
        return "application: not NULL with timestamps";
    if (config->log != NULL && read->copied_bytes == 0)
        return "log: NULL if nothing is copied";
    if (config->log != NULL && !ub_log_valid(config->log))
        return "log: a ring whose bytes are a power of two up to UB_LOG_BYTES_MAX";
    if (!ub_sockets_return(config->sockets, config->socket_count, SO_RCVTIMEO))
        return "sockets: open ones, with SO_RCVTIMEO set";
    return NULL;
}

const char *ub_receive_check(const struct ub_receive_config *config) {
    if (config == NULL)
        return "config: not NULL";
    if (config->control == NULL)
        return "control: not NULL";
    const char *refused = check_ways(config);
    if (refused == NULL && ub_receive_way_of(config->call)->check != NULL)
        refused = ub_receive_way_of(config->call)->check(config);
    if (refused == NULL)
        refused = check_datagrams(config);
    return refused != NULL ? refused : check_extras(config);
}

/* ---- the account of a call ------------------------------------------------------------------- */

static void account_call(struct ub_receive_stats *stats, const struct ub_tally *tally,
                         uint64_t now_ns) {
    const struct ub_arrivals *arrivals = &tally->arrivals;
    uint64_t bytes =
        (arrivals->received - arrivals->others) * tally->usual_bytes + arrivals->others_bytes;
    ub_add(&stats->read_packets, tally->read);
    ub_add(&stats->received_packets, arrivals->received);
    ub_add(&stats->received_bytes, bytes);
    ub_add(&stats->duplicate_packets, arrivals->duplicate);
    ub_add(&stats->late_packets, arrivals->late);
    ub_add(&stats->ancient_packets, arrivals->ancient);
    ub_add(&stats->foreign_packets, tally->foreign);
    ub_add(&stats->foreign_size_packets, tally->foreign_size);
    ub_add(&stats->truncated_packets, tally->truncated);
    ub_add(&stats->corrupt_packets, tally->corrupt);
    ub_add(&stats->unlogged_packets, tally->unlogged);
    ub_add(&stats->echoed_packets, tally->echoed);
    ub_add(&stats->unechoed_packets, tally->unechoed);
    if (arrivals->received == 0)
        return;
    if (stats->first_ns == 0) {
        ub_set(&stats->first_ns, now_ns);
        ub_set(&stats->first_packets, arrivals->received);
        ub_set(&stats->first_bytes, bytes);
    }
    ub_set(&stats->last_ns, now_ns);
}

static void account_error(struct ub_receive_stats *stats, int error) {
    if (error == EAGAIN) { /* nothing came in time; EWOULDBLOCK is the same number on Linux */
        ub_add(&stats->empty_calls, 1);
    } else if (error != EINTR) {
        ub_set(&stats->last_errno, (uint64_t)error);
        ub_add(&stats->errors, 1);
    }
}

/* Whether any socket has a datagram. poll(2) leaves a pending error in place, unlike a call. */
static int any_waiting(const struct ub_receive_config *config) {
    for (uint32_t index = 0; index < config->socket_count; index++) {
        struct pollfd socket = {.fd = config->sockets[index], .events = POLLIN};
        if (poll(&socket, 1, 0) > 0 && (socket.revents & POLLIN))
            return 1;
    }
    return 0;
}

/*
 * A call returns within a slice, with or without a datagram, and work reads the clock in every
 * turn. A loop without progress for much longer was stopped or had no CPU, in a call or outside.
 * Only then are the sockets polled: a stop signal ends a call without the datagram that waits
 * (signal(7)), and it may wait at another socket.
 */
static void note_progress(struct receiver *receiver, int messages, uint64_t now_ns) {
    uint64_t before_ns = receiver->progress_ns;
    receiver->progress_ns = now_ns;
    if (now_ns <= before_ns + UB_STANDSTILL_NS)
        return;
    if (messages <= 0 && !any_waiting(receiver->config))
        return;
    ub_add(&receiver->stats->standstills, 1);
    ub_add(&receiver->stats->standstill_ns, now_ns - before_ns);
}

/*
 * What came between two moments at which nothing was left to read arrived in the time between them,
 * however the loop waits. Behind the last packets the moment is as late as the wait is long, so it
 * counts only once others follow.
 */
static void note_drained(struct receiver *receiver, int messages, uint64_t now_ns) {
    struct ub_receive_stats *stats = receiver->stats;
    const struct ub_wait_state *wait = &receiver->wait_state;
    int emptied = messages == -EAGAIN || (messages >= 0 && (uint32_t)messages < wait->batch);
    receiver->left |= !emptied;
    if (wait->next != wait->ready && wait->next != receiver->config->socket_count)
        return;
    if (!receiver->left && receiver->drained_ns == 0 && stats->received_packets != 0) {
        receiver->drained_ns = now_ns;
        if (stats->drained_first_ns == 0) {
            ub_set(&stats->drained_first_ns, now_ns);
            ub_set(&stats->drained_first_packets, stats->received_packets);
            ub_set(&stats->drained_first_bytes, stats->received_bytes);
        }
    }
    receiver->left = 0;
}

static void note_packets_after(struct receiver *receiver) {
    struct ub_receive_stats *stats = receiver->stats;
    if (receiver->drained_ns == 0)
        return;
    ub_set(&stats->drained_last_ns, receiver->drained_ns);
    ub_set(&stats->drained_last_packets, stats->received_packets);
    ub_set(&stats->drained_last_bytes, stats->received_bytes);
    receiver->drained_ns = 0;
}

static int64_t cpu_ns(void) {
    return (int64_t)ub_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* The minimum of several: the thread may lose the CPU between two readings. */
static int64_t reading_cost_ns(void) {
    int64_t least_ns = INT64_MAX;
    for (int tries = 0; tries < 16; tries++) {
        int64_t before = cpu_ns(), cost_ns = cpu_ns() - before;
        least_ns = cost_ns < least_ns ? cost_ns : least_ns;
    }
    return least_ns;
}

/*
 * A slow reader: spends the work of all datagrams of a call after they were counted, so that stop
 * can end it at any time with all counts complete. It spends CPU time, because a thread that lost
 * the CPU does no work. The thread's own clock is a system call, not in the vDSO
 * (clock_gettime(2)), so it is read before and after, and again if others had the CPU meanwhile.
 * These readings are part of the work; an amount too small for them is spent with the work of later
 * calls.
 */
static void work(struct receiver *receiver, uint64_t packets) {
    const struct ub_control *control = receiver->config->control;
    receiver->owed_ns += (int64_t)(packets * receiver->config->work_ns);
    if (receiver->owed_ns <= 2 * receiver->reading_ns)
        return;
    /* Half of the first and half of the last reading are outside the measured time. */
    int64_t rest_ns = receiver->owed_ns - receiver->reading_ns, until_ns = cpu_ns() + rest_ns;
    do {
        uint64_t began = ub_now_ns(), now = began;
        while ((int64_t)(now - began) < rest_ns - receiver->reading_ns && !ub_stopped(control)) {
            now = ub_now_ns();
            note_progress(receiver, 0, now);
        }
        rest_ns = until_ns - cpu_ns();
    } while (rest_ns > 0 && !ub_stopped(control));
    receiver->owed_ns = rest_ns;
}

/* Whether the worker deliberately stops serving its sockets now. */
static int fault_due(const struct ub_receive_config *config) {
    return config->fault != UB_FAULT_NONE && ub_now_ns() >= config->fault_at_ns;
}

static void hang(const struct ub_receive_config *config) {
    while (!ub_stopped(config->control)) {
        uint64_t now = ub_now_ns();
        ub_sleep_slice(now, now + UB_SLICE_NS);
    }
}

/* Accounts for the messages of one call, and spends their work. */
static void read_messages(struct receiver *receiver, int socket, uint32_t messages, uint64_t now) {
    const struct ub_receive_config *config = receiver->config;
    struct ub_tally tally = {.config = config,
                             .usual_bytes = config->datagrams->size_bytes,
                             .pattern = receiver->pattern,
                             .notes_each = config->log != NULL || config->echo_every != 0 ||
                                           config->timestamps,
                             .since_epoch_ns = now - config->epoch_ns,
                             .socket = socket};
    if (config->timestamps)
        tally.realtime_ahead_ns = ub_realtime_ahead_ns(now);
    receiver->read->account(&receiver->inbox, messages, &tally);
    ub_run_flush(&tally.run, config->window_words, &tally.arrivals);
    ub_inbox_renew(&receiver->inbox, messages);
    ub_add(&receiver->stats->read_messages, messages);
    if (tally.arrivals.received != 0)
        note_packets_after(receiver);
    account_call(receiver->stats, &tally, now);
    if (config->milliseconds != NULL && now > config->epoch_ns && !receiver->read->dates)
        ub_milliseconds_add(config->milliseconds, now - config->epoch_ns,
                            (uint32_t)tally.arrivals.received);
    if (config->work_ns != 0)
        work(receiver, tally.read);
}

/* Returns the number of messages of one call, or -errno. */
static int receive(struct receiver *receiver, int socket) {
    const struct ub_wait_way *wait = receiver->wait;
    int messages = receiver->call->receive(&receiver->inbox, socket, receiver->wait_state.flags);
    ub_add(&receiver->stats->receive_calls, 1);
    ub_set(&receiver->stats->last_cpu, (uint64_t)sched_getcpu() + 1);
    if (wait->received != NULL)
        wait->received(&receiver->wait_state, messages > 0 ? (uint32_t)messages : 0);
    if (messages < 0)
        account_error(receiver->stats, -messages);
    return messages;
}

static void receive_loop(struct receiver *receiver) {
    const struct ub_receive_config *config = receiver->config;
    struct ub_wait_state *wait_state = &receiver->wait_state;
    receiver->progress_ns = ub_now_ns();
    while (!ub_stopped(config->control) && !fault_due(config)) {
        int socket = receiver->wait->next(wait_state);
        int messages = socket < 0 ? 0 : receive(receiver, socket);
        uint64_t now = ub_now_ns();
        note_progress(receiver, messages, now);
        if (messages > 0)
            read_messages(receiver, socket, (uint32_t)messages, now);
        if (socket >= 0)
            note_drained(receiver, messages, now);
        if (wait_state->until_ns > receiver->progress_ns)
            receiver->progress_ns = wait_state->until_ns;
    }
    if (config->fault == UB_FAULT_HANG)
        hang(config);
}

/* Each prepare, even a failed one, is followed by its own release. */
static int run_wait(struct receiver *receiver) {
    const struct ub_wait_way *wait = receiver->wait;
    int error = wait->prepare == NULL ? 0 : wait->prepare(&receiver->wait_state);
    if (error == 0)
        receive_loop(receiver);
    if (wait->release != NULL)
        wait->release(&receiver->wait_state);
    return error;
}

static int run_call(struct receiver *receiver) {
    const struct ub_receive_config *config = receiver->config;
    uint32_t most = receiver->call->messages_max;
    uint32_t batch = config->batch < most ? config->batch : most;
    uint32_t room_bytes = receiver->read->copied_bytes;
    if (room_bytes > config->room_bytes)
        room_bytes = config->room_bytes;
    receiver->wait_state.batch = batch;
    receiver->wait_state.waits = receiver->call->waits;
    receiver->wait_state.flags = receiver->wait->flags;
    int error = receiver->call->prepare(&receiver->inbox, config, batch, room_bytes);
    if (error == 0)
        error = run_wait(receiver);
    receiver->call->release(&receiver->inbox);
    return error;
}

int ub_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats) {
    if (stats == NULL || ub_receive_check(config) != NULL)
        return -EINVAL;
    struct receiver receiver = {.config = config,
                                .stats = stats,
                                .call = ub_receive_way_of(config->call),
                                .wait = ub_wait_way_of(config->wait),
                                .read = ub_read_way_of(config->read),
                                .wait_state = {.config = config, .stats = stats, .epoll = -1}};
    if (config->work_ns != 0)
        receiver.reading_ns = reading_cost_ns();
    if (config->read == UB_READ_VERIFY) {
        uint32_t longest_bytes = ub_longest_bytes(config->datagrams, config->datagram_count);
        receiver.pattern = ub_allocate(longest_bytes);
        if (receiver.pattern == NULL)
            return -ENOMEM;
        ub_pattern_write(receiver.pattern, longest_bytes);
    }
    int error = run_call(&receiver);
    free(receiver.pattern);
    return error;
}
