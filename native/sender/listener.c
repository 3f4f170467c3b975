/*
 * Listening for what comes back on a sender's sockets, beside its loop: by epoll, until all is
 * quiet.
 *
 * Owns what an echo and an answer are at the sender, and how they are counted. Must never send
 * anything, nor count as a datagram of the run: what comes back is not in the ledger.
 */
#include "datagram.h"
#include "ids.h"
#include "series.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOK_MS = 20, READY_MAX = 64, BATCH = 64, CALLS_PER_TURN = 4 };

/* Echoes or answers: how they are read and counted. */
struct listener {
    const struct ub_listen_config *config;
    /* Counts the messages of a call on a socket. */
    void (*account)(struct listener *listener, uint32_t index, uint32_t messages);
    /* Whether nothing more can arrive; NULL: unknown. */
    int (*complete)(const struct listener *listener);
    void *stats;
    uint64_t *errors, *last_errno; /* of the stats */
    uint8_t *room;                 /* room_bytes of each message; 0: only lengths are read */
    uint32_t room_bytes;
    struct iovec vectors[BATCH];
    struct mmsghdr messages[BATCH];
};

/* ---- permitted configs ----------------------------------------------------------------------- */

static const char *check(const struct ub_listen_config *config) {
    if (config == NULL)
        return "config: not NULL";
    if (config->control == NULL)
        return "control: not NULL";
    if (config->ended == NULL)
        return "ended: not NULL";
    if (config->sockets == NULL)
        return "sockets: not NULL";
    if (config->socket_count == 0)
        return "socket_count: at least 1";
    return NULL;
}

const char *ub_echo_listen_check(const struct ub_listen_config *config) {
    const char *refused = check(config);
    if (refused == NULL && config->round_trip == NULL)
        return "round_trip: not NULL for echoes";
    return refused;
}

const char *ub_answers_listen_check(const struct ub_listen_config *config) {
    const char *refused = check(config);
    if (refused != NULL)
        return refused;
    if (config->sent == NULL)
        return "sent: not NULL for answers";
    if (config->ids != NULL && config->round_trip == NULL)
        return "round_trip: not NULL with ids";
    if (config->ids != NULL && config->id_at > UB_MESSAGE_BYTES_MAX - UB_ID_BYTES)
        return "id_at: 0 to UB_MESSAGE_BYTES_MAX, less its two bytes";
    return NULL;
}

/* ---- listening ------------------------------------------------------------------------------- */

/* Reads what is queued in a socket, up to a limit; whether there was anything. An error is told
 * once, and what waits behind it is read in the next turn. */
static int read_socket(struct listener *listener, uint32_t index) {
    int heard = 0, messages = BATCH, socket = listener->config->sockets[index];
    for (int call = 0; call < CALLS_PER_TURN && messages == BATCH; call++) {
        messages = recvmmsg(socket, listener->messages, BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);
        if (messages > 0) {
            listener->account(listener, index, (uint32_t)messages);
            heard = 1;
        } else if (errno != EAGAIN && errno != EINTR) {
            ub_set(listener->last_errno, (uint64_t)errno);
            ub_add(listener->errors, 1);
        }
    }
    return heard;
}

static void listen_until_quiet(struct listener *listener, int epoll) {
    const struct ub_listen_config *config = listener->config;
    struct epoll_event events[READY_MAX];
    uint64_t quiet_since_ns = 0, ended_ns = 0;
    while (!ub_stopped(config->control)) {
        int ended = ub_stopped(config->ended);
        int ready = epoll_wait(epoll, events, READY_MAX, LOOK_MS);
        int heard = 0;
        for (int index = 0; index < ready; index++)
            heard |= read_socket(listener, events[index].data.u32);
        uint64_t now = ub_now_ns();
        if (ended && ended_ns == 0)
            ended_ns = now;
        if (!ended || heard || quiet_since_ns == 0)
            quiet_since_ns = now;
        if (!ended)
            continue;
        if (listener->complete != NULL && listener->complete(listener))
            return;
        if (now - quiet_since_ns >= config->quiet_ns || now - ended_ns >= config->longest_ns)
            return;
    }
}

static int add_sockets(const struct ub_listen_config *config, int epoll) {
    for (uint32_t index = 0; index < config->socket_count; index++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, config->sockets[index], &event) < 0)
            return -errno;
    }
    return 0;
}

static int prepare_room(struct listener *listener) {
    if (listener->room_bytes == 0)
        return 0;
    listener->room = ub_allocate((size_t)BATCH * listener->room_bytes);
    if (listener->room == NULL)
        return -ENOMEM;
    for (uint32_t message = 0; message < BATCH; message++) {
        uint8_t *room = listener->room + (size_t)message * listener->room_bytes;
        listener->vectors[message] = (struct iovec){room, listener->room_bytes};
        listener->messages[message].msg_hdr.msg_iov = &listener->vectors[message];
        listener->messages[message].msg_hdr.msg_iovlen = 1;
    }
    return 0;
}

/* 0, or -errno if the sockets cannot be waited for or memory is short. */
static int run(struct listener *listener) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        return -errno;
    int error = add_sockets(listener->config, epoll);
    if (error == 0)
        error = prepare_room(listener);
    if (error == 0)
        listen_until_quiet(listener, epoll);
    free(listener->room);
    close(epoll);
    return error;
}

/* ---- echoes ---------------------------------------------------------------------------------- */

static void account_echoes(struct listener *listener, uint32_t index, uint32_t messages) {
    (void)index;
    const struct ub_listen_config *config = listener->config;
    struct ub_echo_stats *stats = listener->stats;
    uint64_t since_epoch_ns = ub_now_ns() - config->epoch_ns;
    for (uint32_t message = 0; message < messages; message++) {
        const uint8_t *bytes = listener->vectors[message].iov_base;
        if (listener->messages[message].msg_len != UB_HEADER_BYTES ||
            ub_header_tag(bytes) != config->tag) {
            ub_add(&stats->echo_strangers, 1);
            continue;
        }
        ub_histogram_add(config->round_trip, ub_signed48(since_epoch_ns - ub_header_time_ns(bytes)),
                         1);
        ub_add(&stats->echo_packets, 1);
    }
}

int ub_echo_listen(const struct ub_listen_config *config, struct ub_echo_stats *stats) {
    if (stats == NULL || ub_echo_listen_check(config) != NULL)
        return -EINVAL;
    struct listener listener = {.config = config,
                                .account = account_echoes,
                                .stats = stats,
                                .errors = &stats->echo_errors,
                                .last_errno = &stats->echo_last_errno,
                                .room_bytes = UB_HEADER_BYTES};
    return run(&listener);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Records the round trip of an answer that matches a datagram. */
static void match(struct listener *listener, uint32_t index, uint32_t message, uint64_t now_ns) {
    const struct ub_listen_config *config = listener->config;
    struct ub_answers_stats *stats = listener->stats;
    uint64_t due_ns = 0;
    if (listener->messages[message].msg_len >= listener->room_bytes)
        due_ns = ub_ids_take(config->ids[index],
                             (uint8_t *)listener->vectors[message].iov_base + config->id_at);
    if (due_ns == 0)
        ub_add(&stats->unmatched_packets, 1);
    else
        ub_histogram_add(config->round_trip, (int64_t)(now_ns - due_ns), 1);
}

static void account_answers(struct listener *listener, uint32_t index, uint32_t messages) {
    struct ub_answers_stats *stats = listener->stats;
    uint64_t now = ub_now_ns(), bytes = 0;
    for (uint32_t message = 0; message < messages; message++) {
        bytes += listener->messages[message].msg_len;
        if (listener->config->ids != NULL)
            match(listener, index, message, now);
    }
    ub_add(&stats->answered_packets, messages);
    ub_add(&stats->answered_bytes, bytes);
    if (stats->answer_first_ns == 0) {
        ub_set(&stats->answer_first_ns, now);
        ub_set(&stats->answer_first_packets, messages);
    }
    ub_set(&stats->answer_last_ns, now);
}

static int all_answered(const struct listener *listener) {
    const struct ub_answers_stats *stats = listener->stats;
    uint64_t sent = __atomic_load_n(&listener->config->sent->sent_packets, __ATOMIC_RELAXED);
    return stats->answered_packets >= sent;
}

int ub_answers_listen(const struct ub_listen_config *config, struct ub_answers_stats *stats) {
    if (stats == NULL || ub_answers_listen_check(config) != NULL)
        return -EINVAL;
    struct listener listener = {.config = config,
                                .account = account_answers,
                                .complete = all_answered,
                                .stats = stats,
                                .errors = &stats->answer_errors,
                                .last_errno = &stats->answer_last_errno};
    if (config->ids != NULL)
        listener.room_bytes = config->id_at + UB_ID_BYTES;
    return run(&listener);
}
