/*
 * The TCP baseline: a pair of loops that write and read streams, and count bytes at both ends.
 *
 * Owns all of it but pacing. A stream has no packets, header or window: "packets" are writes, and
 * at the receiver as many as its bytes amount to.
 */
#include "datagram.h"
#include "sender/pacer.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>

/* ---- sending --------------------------------------------------------------------------------- */

const char *ub_stream_send_check(const struct ub_send_config *config) {
    if (config == NULL)
        return "config: not NULL";
    if (config->control == NULL)
        return "control: not NULL";
    if (config->flow_count == 0 || config->flow_count > UB_FLOWS_MAX)
        return "flow_count: 1 to UB_FLOWS_MAX";
    if (config->sockets == NULL)
        return "sockets: not NULL";
    if (!ub_datagrams_valid(config->datagrams, config->datagram_count, 1))
        return "datagrams: one, of 1 to UB_MESSAGE_BYTES_MAX bytes";
    if (config->rate_pps > UB_RATE_PPS_MAX)
        return "rate_pps: 0 to UB_RATE_PPS_MAX";
    if (config->end_ns <= config->start_ns)
        return "end_ns: after start_ns";
    if (!ub_sockets_return(config->sockets, config->flow_count, SO_SNDTIMEO))
        return "sockets: open ones, with SO_SNDTIMEO set";
    return NULL;
}

struct stream_sender {
    const struct ub_send_config *config;
    struct ub_send_stats *stats;
    struct ub_pacer pacer;
    uint8_t *bytes;    /* of one write */
    uint32_t *written; /* of each flow's unfinished write */
    uint64_t begun;    /* writes by this call; the stats may continue an earlier one */
};

/* One call on a flow; 0, or -errno if the stream is broken. */
static int write_some(struct stream_sender *sender, uint32_t flow) {
    const struct ub_send_config *config = sender->config;
    struct ub_send_stats *stats = sender->stats;
    uint32_t *written = &sender->written[flow];
    if (*written == 0) {
        sender->begun++;
        sender->pacer.next++;
        ub_add(&stats->attempted_packets, 1);
    }
    ssize_t sent = send(config->sockets[flow], sender->bytes + *written,
                        config->datagrams->size_bytes - *written, MSG_NOSIGNAL);
    int error = sent < 0 ? errno : 0;
    ub_add(&stats->send_calls, 1);
    if (error == EAGAIN)
        ub_add(&stats->eagain, 1);
    else if (error != 0 && error != EINTR)
        return -error;
    if (sent <= 0)
        return 0;
    ub_add(&stats->sent_bytes, (uint64_t)sent);
    *written += (uint32_t)sent;
    if (*written < config->datagrams->size_bytes) {
        ub_add(&stats->partial_calls, 1);
        return 0;
    }
    *written = 0;
    ub_add(&stats->sent_packets, 1);
    return 0;
}

static int send_loop(struct stream_sender *sender) {
    const struct ub_send_config *config = sender->config;
    struct ub_send_stats *stats = sender->stats;
    uint32_t flow = 0;
    uint64_t now = ub_now_ns();
    while (!ub_stopped(config->control) && now < sender->pacer.leave_ns) {
        int unfinished = sender->written[flow] != 0;
        if (!unfinished && config->count != 0 && sender->begun == config->count)
            break;
        if (now < config->start_ns) {
            ub_sleep_slice(now, config->start_ns);
            now = ub_now_ns();
            continue;
        }
        if (!unfinished && ub_pacer_available(&sender->pacer, now, &stats->stalled_packets) == 0) {
            if (now >= config->end_ns)
                break;
            now = ub_pacer_wait(&sender->pacer, now, 1, config->control);
            continue;
        }
        int first = stats->first_ns == 0;
        if (first)
            ub_set(&stats->first_ns, now);
        int error = write_some(sender, flow);
        if (error != 0)
            return error;
        if (first && config->rate_pps != 0)
            ub_set(&stats->first_packets, stats->sent_packets);
        now = ub_now_ns();
        ub_set(&stats->last_ns, now);
        ub_set(&stats->last_cpu, (uint64_t)sched_getcpu() + 1);
        /* An unfinished write comes first: a stream keeps its order. */
        if (sender->written[flow] == 0)
            flow = (flow + 1) % config->flow_count;
    }
    return 0;
}

int ub_stream_send(const struct ub_send_config *config, struct ub_send_stats *stats) {
    if (stats == NULL || ub_stream_send_check(config) != NULL)
        return -EINVAL;
    struct stream_sender sender = {.config = config, .stats = stats};
    sender.bytes = ub_allocate(config->datagrams->size_bytes);
    sender.written = ub_allocate(config->flow_count * sizeof *sender.written);
    int error = -ENOMEM;
    if (sender.bytes != NULL && sender.written != NULL) {
        ub_pattern_write(sender.bytes, config->datagrams->size_bytes);
        ub_pacer_init(&sender.pacer, config);
        error = send_loop(&sender);
    }
    free(sender.bytes);
    free(sender.written);
    return error;
}

/* ---- receiving ------------------------------------------------------------------------------- */

const char *ub_stream_receive_check(const struct ub_receive_config *config) {
    if (config == NULL)
        return "config: not NULL";
    if (config->control == NULL)
        return "control: not NULL";
    if (config->room_bytes == 0 || config->room_bytes > UB_ROOM_BYTES_MAX)
        return "room_bytes: 1 to UB_ROOM_BYTES_MAX";
    if (config->sockets == NULL)
        return "sockets: not NULL";
    if (config->socket_count == 0 || config->socket_count > UB_SOCKETS_MAX)
        return "socket_count: 1 to UB_SOCKETS_MAX";
    if (!ub_datagrams_valid(config->datagrams, config->datagram_count, 1))
        return "datagrams: one, of 1 to UB_MESSAGE_BYTES_MAX bytes";
    if (!ub_sockets_return(config->sockets, config->socket_count, SO_RCVTIMEO))
        return "sockets: open ones, with SO_RCVTIMEO set";
    return NULL;
}

/* One call: 0, 1 at the end of the stream, or -errno if it is broken. */
static int read_some(const struct ub_receive_config *config, struct ub_receive_stats *stats,
                     int socket, uint8_t *room) {
    ssize_t length = recv(socket, room, config->room_bytes, 0);
    int error = length < 0 ? errno : 0;
    uint64_t now = ub_now_ns();
    ub_add(&stats->receive_calls, 1);
    ub_set(&stats->last_cpu, (uint64_t)sched_getcpu() + 1);
    if (error == EAGAIN)
        ub_add(&stats->empty_calls, 1);
    else if (error != 0 && error != EINTR)
        return -error;
    if (length <= 0)
        return length == 0;
    ub_add(&stats->received_bytes, (uint64_t)length);
    ub_set(&stats->read_packets, stats->received_bytes / config->datagrams->size_bytes);
    ub_set(&stats->received_packets, stats->read_packets);
    if (stats->first_ns == 0) {
        ub_set(&stats->first_ns, now);
        ub_set(&stats->first_packets, stats->received_packets);
        ub_set(&stats->first_bytes, stats->received_bytes);
    }
    ub_set(&stats->last_ns, now);
    return 0;
}

/* Reads from each stream that has something. */
static int read_ready(const struct ub_receive_config *config, struct ub_receive_stats *stats,
                      struct pollfd *streams, uint8_t *room) {
    ub_add(&stats->wait_calls, 1);
    if (poll(streams, config->socket_count, UB_SLICE_MS) <= 0)
        return 0;
    int result = 0;
    for (uint32_t index = 0; index < config->socket_count && result == 0; index++)
        if (streams[index].revents != 0)
            result = read_some(config, stats, streams[index].fd, room);
    return result;
}

int ub_stream_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats) {
    if (stats == NULL || ub_stream_receive_check(config) != NULL)
        return -EINVAL;
    struct pollfd *streams = ub_allocate(config->socket_count * sizeof *streams);
    uint8_t *room = ub_allocate(config->room_bytes);
    int result = streams == NULL || room == NULL ? -ENOMEM : 0;
    for (uint32_t index = 0; result == 0 && index < config->socket_count; index++)
        streams[index] = (struct pollfd){.fd = config->sockets[index], .events = POLLIN};
    while (result == 0 && !ub_stopped(config->control))
        result = config->socket_count == 1 ? read_some(config, stats, config->sockets[0], room)
                                           : read_ready(config, stats, streams, room);
    free(streams);
    free(room);
    return result > 0 ? 0 : result;
}
