/*
 * Headers that return: the receiver's answer, and the sender's ear.
 *
 * Owns what an echo is. Must never send to anybody but the source of a datagram of ours, and never
 * count as a datagram of the run: echoes are beside the ledger.
 */
#include "receiving.h"

#include <sys/epoll.h>
#include <unistd.h>

enum { SLICE_MS = 20, READY_MAX = 64, ECHOES_PER_TURN = 64 };

void ub_echo(struct ub_tally *tally, const uint8_t *header) {
    const struct msghdr *message = &tally->message->msg_hdr;
    ssize_t sent = sendto(tally->socket, header, UB_HEADER_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL,
                          message->msg_name, message->msg_namelen);
    *(sent < 0 ? &tally->unechoed : &tally->echoed) += 1;
}

static void account(const struct ub_echo_config *config, struct ub_echo_stats *stats,
                    const uint8_t *bytes, ssize_t length) {
    struct ub_header header;
    uint64_t apart_ns = ub_now_ns() - config->epoch_ns;
    if (length == UB_HEADER_BYTES) {
        ub_header_read(bytes, &header);
        if (header.tag == config->tag) {
            apart_ns -= ub_header_time_ns(bytes);
            ub_histogram_add(config->round_trip, (int64_t)(apart_ns << 16) / 65536);
            ub_add(&stats->echo_packets, 1);
            return;
        }
    }
    ub_add(&stats->echo_strangers, 1);
}

/* Reads what a socket has, but not for ever; whether there was an echo. */
static int hear(const struct ub_echo_config *config, struct ub_echo_stats *stats, int socket) {
    uint8_t bytes[UB_HEADER_BYTES + 1];
    for (int turn = 0; turn < ECHOES_PER_TURN; turn++) {
        ssize_t length = recv(socket, bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);
        if (length < 0 && (errno == EAGAIN || errno == EINTR))
            return turn != 0;
        if (length >= 0) {
            account(config, stats, bytes, length);
            continue;
        }
        ub_set(&stats->echo_last_errno, (uint64_t)errno);
        ub_add(&stats->echo_errors, 1);
    }
    return 1;
}

static int watch(const struct ub_echo_config *config, int epoll) {
    for (uint32_t index = 0; index < config->socket_count; index++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = config->sockets[index]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, config->sockets[index], &event) < 0)
            return -errno;
    }
    return 0;
}

static void loop(const struct ub_echo_config *config, struct ub_echo_stats *stats, int epoll) {
    struct epoll_event events[READY_MAX];
    uint64_t quiet_since_ns = 0;
    while (!ub_stopped(config->control)) {
        int ended = ub_stopped(config->ended);
        int ready = epoll_wait(epoll, events, READY_MAX, SLICE_MS);
        int heard = 0;
        for (int index = 0; index < ready; index++)
            heard |= hear(config, stats, events[index].data.fd);
        uint64_t now = ub_now_ns();
        if (!ended || heard || quiet_since_ns == 0)
            quiet_since_ns = now;
        else if (now - quiet_since_ns >= config->quiet_ns)
            return;
    }
}

int ub_echo_listen(const struct ub_echo_config *config, struct ub_echo_stats *stats) {
    if (config == NULL || stats == NULL || config->control == NULL || config->ended == NULL)
        return -EINVAL;
    if (config->sockets == NULL || config->round_trip == NULL || config->socket_count == 0)
        return -EINVAL;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        return -errno;
    int error = watch(config, epoll);
    if (error == 0)
        loop(config, stats, epoll);
    close(epoll);
    return error;
}
