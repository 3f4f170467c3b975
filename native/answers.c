/*
 * Answers of a user's program, received by the sender.
 *
 * Owns what an answer is and how it is counted. Must never send anything.
 */
#include "ids.h"
#include "listen.h"
#include "series.h"

#include <stdlib.h>
#include <sys/socket.h>

enum { BATCH = 64, CALLS_PER_TURN = 4 };

struct answers {
    const struct ub_answers_config *config;
    struct ub_answers_stats *stats;
    uint8_t *room; /* up to the end of an id, of each message; NULL: only lengths are read */
    uint32_t room_bytes;
    struct iovec vectors[BATCH];
    struct mmsghdr messages[BATCH];
};

static int prepare(struct answers *answers) {
    if (answers->config->ids == NULL)
        return 0;
    answers->room_bytes = answers->config->id_at + UB_ID_BYTES;
    answers->room = ub_allocate((size_t)BATCH * answers->room_bytes);
    if (answers->room == NULL)
        return -ENOMEM;
    for (uint32_t message = 0; message < BATCH; message++) {
        uint8_t *room = answers->room + (size_t)message * answers->room_bytes;
        answers->vectors[message] = (struct iovec){room, answers->room_bytes};
        answers->messages[message].msg_hdr.msg_iov = &answers->vectors[message];
        answers->messages[message].msg_hdr.msg_iovlen = 1;
    }
    return 0;
}

/* Records the round trip of an answer that matches a datagram. */
static void match(struct answers *answers, uint32_t index, uint32_t message, uint64_t now_ns) {
    const struct ub_answers_config *config = answers->config;
    uint64_t due_ns = 0;
    if (answers->messages[message].msg_len >= answers->room_bytes)
        due_ns = ub_ids_take(config->ids[index],
                             (uint8_t *)answers->vectors[message].iov_base + config->id_at);
    if (due_ns == 0)
        ub_add(&answers->stats->unmatched_packets, 1);
    else
        ub_histogram_add(config->round_trip, (int64_t)(now_ns - due_ns), 1);
}

static void account(struct answers *answers, uint32_t index, uint32_t messages) {
    struct ub_answers_stats *stats = answers->stats;
    uint64_t now = ub_now_ns(), bytes = 0;
    for (uint32_t message = 0; message < messages; message++) {
        bytes += answers->messages[message].msg_len;
        if (answers->config->ids != NULL)
            match(answers, index, message, now);
    }
    ub_add(&stats->answered_packets, messages);
    ub_add(&stats->answered_bytes, bytes);
    if (stats->answer_first_ns == 0) {
        ub_set(&stats->answer_first_ns, now);
        ub_set(&stats->answer_first_packets, messages);
    }
    ub_set(&stats->answer_last_ns, now);
}

/* Reads what a socket has, up to a limit; whether there was an answer. An error is told once, and
 * what waits behind it is read in the next turn. */
static int read_answers(void *subject, uint32_t index) {
    struct answers *answers = subject;
    int heard = 0, socket = answers->config->sockets[index];
    for (int call = 0; call < CALLS_PER_TURN; call++) {
        int messages = recvmmsg(socket, answers->messages, BATCH, MSG_DONTWAIT | MSG_TRUNC, NULL);
        if (messages < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                ub_set(&answers->stats->answer_last_errno, (uint64_t)errno);
                ub_add(&answers->stats->answer_errors, 1);
            }
            return heard;
        }
        account(answers, index, (uint32_t)messages);
        heard = 1;
        if (messages < BATCH)
            return heard;
    }
    return heard;
}

static int all_answered(void *subject) {
    const struct answers *answers = subject;
    uint64_t sent = __atomic_load_n(&answers->config->sent->sent_packets, __ATOMIC_RELAXED);
    return answers->stats->answered_packets >= sent;
}

static struct ub_listener listener_of(const struct ub_answers_config *config) {
    return (struct ub_listener){.sockets = config->sockets,
                                .socket_count = config->socket_count,
                                .control = config->control,
                                .ended = config->ended,
                                .quiet_ns = config->quiet_ns,
                                .longest_ns = config->longest_ns,
                                .read = read_answers,
                                .complete = all_answered};
}

const char *ub_answers_listen_check(const struct ub_answers_config *config) {
    if (config == NULL)
        return "config: not NULL";
    const struct ub_listener listener = listener_of(config);
    const char *refused = ub_listener_check(&listener);
    if (refused != NULL)
        return refused;
    if (config->sent == NULL)
        return "sent: not NULL";
    if (config->ids != NULL && config->round_trip == NULL)
        return "round_trip: not NULL with ids";
    if (config->ids != NULL && config->id_at > UB_MESSAGE_BYTES_MAX - UB_ID_BYTES)
        return "id_at: 0 to UB_MESSAGE_BYTES_MAX, less its two bytes";
    return NULL;
}

int ub_answers_listen(const struct ub_answers_config *config, struct ub_answers_stats *stats) {
    if (stats == NULL || ub_answers_listen_check(config) != NULL)
        return -EINVAL;
    struct answers answers = {.config = config, .stats = stats};
    struct ub_listener listener = listener_of(config);
    listener.subject = &answers;
    int error = prepare(&answers);
    if (error == 0)
        error = ub_listen(&listener);
    free(answers.room);
    return error;
}
