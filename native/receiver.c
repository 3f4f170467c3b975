/*
 * The frame of every receiving loop: wait, receive, account, work, until stop.
 *
 * Owns what ways a config asks for, and what becomes of their counts. Must never drain the socket
 * after stop: what is queued then is the kernel's to tell.
 */
#include "receiving.h"

#include <sched.h>
#include <stdlib.h>

_Static_assert(offsetof(struct ub_receive_stats, last_cpu) == 15 * sizeof(uint64_t), "no padding");

/* The registries: a new way is a row here, a file, and an enum constant. */
static const struct ub_receive_way *const calls[] = {
    [UB_RECEIVE_RECVMMSG] = &ub_receive_recvmmsg,
    [UB_RECEIVE_RECV] = &ub_receive_recv,
};

static const struct ub_wait_way *const waits[] = {
    [UB_WAIT_BLOCK] = &ub_wait_block,
    [UB_WAIT_EPOLL] = &ub_wait_epoll,
    [UB_WAIT_SPIN] = &ub_wait_spin,
    [UB_WAIT_NAP] = &ub_wait_nap,
};

static const struct ub_read_way *const reads[] = {
    [UB_READ_HEADER] = &ub_read_header,
    [UB_READ_COPY] = &ub_read_copy,
    [UB_READ_NONE] = &ub_read_none,
    [UB_READ_VERIFY] = &ub_read_verify,
};

struct receiver {
    const struct ub_receive_config *config;
    struct ub_receive_stats *stats;
    const struct ub_receive_way *call;
    const struct ub_wait_way *wait;
    const struct ub_read_way *read;
    struct ub_inbox inbox;
    struct ub_turns turns;
    uint8_t *pattern; /* NULL where nothing is verified */
};

static const int32_t *sockets_of(const struct ub_receive_config *config) {
    return config->socket_count == 0 ? &config->socket : config->sockets;
}

static uint32_t socket_count_of(const struct ub_receive_config *config) {
    return config->socket_count == 0 ? 1 : config->socket_count;
}

static int check_ways(const struct ub_receive_config *config) {
    if (config->call >= sizeof calls / sizeof *calls ||
        config->wait >= sizeof waits / sizeof *waits ||
        config->read >= sizeof reads / sizeof *reads || config->fault > UB_FAULT_EXIT)
        return -EINVAL;
    /* A nap of 0 would be spinning by another name; a day is the longest that adds up safely. */
    if (config->wait == UB_WAIT_NAP &&
        (config->nap_ns == 0 || config->nap_ns > 86400 * UB_SECOND_NS))
        return -EINVAL;
    return socket_count_of(config) > waits[config->wait]->sockets_max ? -EINVAL : 0;
}

/* What is asked for beside the counts must be there to be read. */
static int check_beside(const struct ub_receive_config *config) {
    const struct ub_read_way *read = reads[config->read];
    if (config->log != NULL && (!read->copies || !ub_log_valid(config->log)))
        return -EINVAL;
    if ((config->echo_every != 0 || config->timestamps) && !read->sees_header)
        return -EINVAL;
    if (config->timestamps && (config->stack == NULL || config->application == NULL))
        return -EINVAL;
    return 0;
}

static int check_sizes(const struct ub_receive_config *config) {
    uint32_t smallest = reads[config->read]->sees_header ? UB_HEADER_BYTES : 0;
    if (config->size_bytes < smallest || config->size_bytes > UB_PAYLOAD_BYTES_MAX)
        return -EINVAL;
    if (config->tail_bytes > config->size_bytes)
        return -EINVAL;
    if (config->tail_bytes != 0 && config->tail_bytes < smallest)
        return -EINVAL;
    if (config->room_bytes == 0 || config->room_bytes > UB_ROOM_BYTES_MAX)
        return -EINVAL;
    return 0;
}

static int check_config(const struct ub_receive_config *config,
                        const struct ub_receive_stats *stats) {
    if (config == NULL || stats == NULL || config->control == NULL || config->flows == NULL)
        return -EINVAL;
    if (check_ways(config) != 0 || check_sizes(config) != 0 || check_beside(config) != 0)
        return -EINVAL;
    if (config->batch == 0 || config->batch > UB_BATCH_MAX)
        return -EINVAL;
    if (ub_flow_state_bytes(config->flow_count, config->window_words) == 0)
        return -EINVAL;
    if (config->work_ns > UB_WORK_NS_MAX || sockets_of(config) == NULL)
        return -EINVAL;
    for (uint32_t index = 0; index < socket_count_of(config); index++) {
        int error = ub_socket_comes_back(sockets_of(config)[index], SO_RCVTIMEO);
        if (error != 0)
            return error;
    }
    return 0;
}

static void account(struct ub_receive_stats *stats, const struct ub_tally *tally, uint64_t now_ns) {
    const struct ub_arrivals *arrivals = &tally->arrivals;
    uint64_t bytes = (arrivals->received - arrivals->received_tails) * tally->config->size_bytes +
                     arrivals->received_tails * tally->config->tail_bytes;
    ub_add(&stats->read_packets, tally->read);
    ub_add(&stats->received_packets, arrivals->received);
    ub_add(&stats->received_bytes, bytes);
    ub_add(&stats->duplicate_packets, arrivals->duplicate);
    ub_add(&stats->late_packets, arrivals->late);
    ub_add(&stats->ancient_packets, arrivals->ancient);
    ub_add(&stats->foreign_packets, tally->foreign);
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

/*
 * A slow reader: spends the work of all datagrams of a call after they were counted, so that
 * stop, looked at all the while, can end it at any time and the counts are whole. It burns wall
 * time, of which a thread that is alone on its CPU has as much CPU time: the thread's own clock
 * is no vDSO call (clock_gettime(2)), and its cost would be part of the work.
 */
static void work(const struct ub_receive_config *config, uint64_t packets, uint64_t since_ns) {
    uint64_t work_ns = packets * config->work_ns;
    while (ub_now_ns() - since_ns < work_ns && !ub_stopped(config->control))
        ;
}

/* Whether the worker stops serving its sockets now, on purpose. */
static int faulty(const struct ub_receive_config *config) {
    return config->fault != UB_FAULT_NONE && ub_now_ns() >= config->fault_at_ns;
}

static void hang(const struct ub_receive_config *config) {
    while (!ub_stopped(config->control)) {
        uint64_t now = ub_now_ns();
        ub_sleep_slice(now, now + UB_SLICE_NS);
    }
}

/* Tells the counts of one call's messages. */
static void read_messages(struct receiver *receiver, int socket, uint32_t messages) {
    const struct ub_receive_config *config = receiver->config;
    uint64_t now = ub_now_ns();
    struct ub_tally tally = {.config = config,
                             .pattern = receiver->pattern,
                             .since_epoch_ns = now - config->epoch_ns,
                             .socket = socket};
    if (config->timestamps)
        tally.realtime_ahead_ns = ub_realtime_ahead_ns(now);
    receiver->read->account(&receiver->inbox, messages, &tally);
    ub_run_flush(&tally.run, config->window_words, &tally.arrivals);
    ub_inbox_renew(&receiver->inbox, messages);
    ub_add(&receiver->stats->read_messages, messages);
    account(receiver->stats, &tally, now);
    if (config->milliseconds != NULL && now > config->epoch_ns)
        ub_milliseconds_add(config->milliseconds, now - config->epoch_ns,
                            (uint32_t)tally.arrivals.received);
    if (config->work_ns != 0)
        work(config, tally.read, now);
}

static void loop(struct receiver *receiver) {
    const struct ub_receive_config *config = receiver->config;
    const struct ub_wait_way *wait = receiver->wait;
    struct ub_receive_stats *stats = receiver->stats;
    while (!ub_stopped(config->control) && !faulty(config)) {
        int socket = wait->next(&receiver->turns);
        if (socket < 0)
            continue;
        int messages = receiver->call->receive(&receiver->inbox, socket, wait->flags);
        ub_add(&stats->receive_calls, 1);
        ub_set(&stats->last_cpu, (uint64_t)sched_getcpu() + 1);
        if (wait->told != NULL)
            wait->told(&receiver->turns, messages > 0 ? (uint32_t)messages : 0);
        if (messages < 0)
            account_error(stats, -messages);
        else
            read_messages(receiver, socket, (uint32_t)messages);
    }
    if (config->fault == UB_FAULT_HANG)
        hang(config);
}

/* Everything the loop needs; 0 or -errno. */
static int make(struct receiver *receiver) {
    const struct ub_receive_config *config = receiver->config;
    uint32_t most = receiver->call->messages_max;
    uint32_t batch = config->batch < most ? config->batch : most;
    receiver->turns = (struct ub_turns){.config = config,
                                        .stats = receiver->stats,
                                        .sockets = sockets_of(config),
                                        .socket_count = socket_count_of(config),
                                        .batch = batch,
                                        .epoll = -1};
    if (config->read == UB_READ_VERIFY) {
        receiver->pattern = ub_allocate(config->size_bytes);
        if (receiver->pattern == NULL)
            return -ENOMEM;
        ub_pattern_write(receiver->pattern, config->size_bytes);
    }
    int error = ub_inbox_make(&receiver->inbox, config, batch,
                              receiver->read->copies ? config->room_bytes : 0);
    if (error != 0 || receiver->wait->prepare == NULL)
        return error;
    return receiver->wait->prepare(&receiver->turns);
}

static void release(struct receiver *receiver) {
    if (receiver->wait->release != NULL)
        receiver->wait->release(&receiver->turns);
    ub_inbox_release(&receiver->inbox);
    free(receiver->pattern);
}

int ub_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats) {
    int error = check_config(config, stats);
    if (error != 0)
        return error;
    struct receiver receiver = {.config = config,
                                .stats = stats,
                                .call = calls[config->call],
                                .wait = waits[config->wait],
                                .read = reads[config->read]};
    error = make(&receiver);
    if (error == 0)
        loop(&receiver);
    release(&receiver);
    return error;
}
