/*
 * The frame of every receiving loop: receive, account, work, until stop.
 *
 * Owns what a datagram counts as. Must never drain the socket after stop: what is queued then is
 * the kernel's to tell.
 */
#include "internal.h"

#include <sched.h>
#include <sys/socket.h>

_Static_assert(sizeof(struct ub_receive_stats) == 2 * UB_CACHE_LINE_BYTES, "whole lines");
_Static_assert(offsetof(struct ub_receive_stats, last_cpu) == 15 * sizeof(uint64_t), "no padding");

/* The registry: a new way of receiving is a row here, a file, and an enum constant. */
static const struct ub_receive_way *const ways[] = {
    [UB_RECEIVE_RECVMMSG] = &ub_receive_recvmmsg,
};

static int check_config(const struct ub_receive_config *config,
                        const struct ub_receive_stats *stats) {
    if (config == NULL || stats == NULL || config->control == NULL || config->flows == NULL)
        return -EINVAL;
    if (config->call >= sizeof ways / sizeof *ways)
        return -EINVAL;
    if (config->batch == 0 || config->batch > UB_BATCH_MAX)
        return -EINVAL;
    if (config->room_bytes == 0 || config->room_bytes > UB_ROOM_BYTES_MAX)
        return -EINVAL;
    if (config->size_bytes < UB_HEADER_BYTES || config->size_bytes > UB_PAYLOAD_BYTES_MAX)
        return -EINVAL;
    if (ub_flow_state_bytes(config->flow_count, config->window_words) == 0)
        return -EINVAL;
    if (config->work_ns > UB_WORK_NS_MAX)
        return -EINVAL;
    return ub_socket_comes_back(config->socket, SO_RCVTIMEO);
}

/* The order decides: whose is it, is it whole, has it our size, have we seen it. */
void ub_tally_datagram(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                       int truncated) {
    const struct ub_receive_config *config = tally->config;
    struct ub_header header;
    tally->read++;
    if (length < UB_HEADER_BYTES) {
        /* Cut off before the end of its header it may be anyone's; that it was cut is certain. */
        *(truncated ? &tally->truncated : &tally->foreign) += 1;
        return;
    }
    ub_header_read(bytes, &header);
    if (header.tag != config->tag || header.flow >= config->flow_count) {
        tally->foreign++;
        return;
    }
    if (truncated) {
        tally->truncated++;
        return;
    }
    if (length != config->size_bytes) {
        tally->corrupt++;
        return;
    }
    struct ub_run *run = &tally->run;
    uint64_t number = header.sequence / UB_WINDOW_WORD_PACKETS;
    if (run->state == NULL || run->number != number || run->flow != header.flow) {
        ub_run_flush(run, config->window_words, &tally->arrivals);
        ub_run_begin(run, ub_flow_state_at(config->flows, config->window_words, header.flow),
                     header.flow, number);
    }
    ub_run_note(run, header.sequence);
}

static void account(struct ub_receive_stats *stats, const struct ub_tally *tally, uint64_t now_ns) {
    const struct ub_arrivals *arrivals = &tally->arrivals;
    ub_add(&stats->read_packets, tally->read);
    ub_add(&stats->received_packets, arrivals->received);
    ub_add(&stats->received_bytes, arrivals->received * tally->config->size_bytes);
    ub_add(&stats->duplicate_packets, arrivals->duplicate);
    ub_add(&stats->late_packets, arrivals->late);
    ub_add(&stats->ancient_packets, arrivals->ancient);
    ub_add(&stats->foreign_packets, tally->foreign);
    ub_add(&stats->truncated_packets, tally->truncated);
    ub_add(&stats->corrupt_packets, tally->corrupt);
    if (arrivals->received == 0)
        return;
    if (stats->first_ns == 0)
        ub_set(&stats->first_ns, now_ns);
    ub_set(&stats->last_ns, now_ns);
}

static void account_error(struct ub_receive_stats *stats, int error) {
    if (error == EAGAIN) { /* SO_RCVTIMEO ran out; EWOULDBLOCK is the same number on Linux */
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

static void loop(const struct ub_receive_config *config, struct ub_receive_stats *stats,
                 const struct ub_receive_way *way, void *memory) {
    while (!ub_stopped(config->control)) {
        int messages = way->receive(memory, config);
        uint64_t now = ub_now_ns();
        ub_add(&stats->receive_calls, 1);
        ub_set(&stats->last_cpu, (uint64_t)sched_getcpu() + 1);
        if (messages < 0) {
            account_error(stats, -messages);
            continue;
        }
        struct ub_tally tally = {.config = config};
        way->account(memory, (uint32_t)messages, &tally);
        ub_run_flush(&tally.run, config->window_words, &tally.arrivals);
        account(stats, &tally, now);
        if (config->work_ns != 0)
            work(config, tally.read, now);
    }
}

int ub_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats) {
    int error = check_config(config, stats);
    if (error != 0)
        return error;
    const struct ub_receive_way *way = ways[config->call];
    void *memory = way->prepare(config);
    if (memory == NULL)
        return -ENOMEM;
    loop(config, stats, way, memory);
    way->release(memory);
    return 0;
}
