/*
 * Listening at the sender, beside its loop, for what comes back: echoes of our own receiver's, or
 * answers of a program of the user's.
 *
 * Each datagram that comes is an answer. With ids it belongs to the datagram of its flow whose id
 * it has, once; otherwise it is counted without a round trip. Echoes of this phase are in the
 * histogram; anything else that comes is counted apart.
 */

struct ub_listen_config {
    const struct ub_control *control; /* stop: it leaves at once */
    const struct ub_control *ended;   /* stop: no more is sent, or read; the listener then leaves
                                         by one of the next three fields */
    uint64_t quiet_ns;                /* after this time without an echo or answer */
    uint64_t longest_ns;              /* after this time, even if more come */
    const struct ub_send_stats *sent; /* only of answers: once each datagram sent has one */
    const int32_t *sockets;           /* socket_count sockets; a sending loop uses them, too */
    uint32_t socket_count;
    struct ub_histogram *round_trip; /* from the time in the header, or when the datagram was due,
                                        to the return of the call */

    /* Only of echoes. */
    uint32_t tag;
    uint64_t epoch_ns;

    /* Only of answers. */
    struct ub_ids **ids; /* of each socket's flow; NULL: answers have none */
    uint32_t id_at;
};

struct ub_echo_stats {
    uint64_t echo_packets;
    uint64_t echo_strangers;
    uint64_t echo_errors;
    uint64_t echo_last_errno;
};

struct ub_answers_stats {
    uint64_t answered_packets;
    uint64_t unmatched_packets;    /* of these, with ids, those that no datagram awaits */
    uint64_t answered_bytes;       /* UDP payload */
    uint64_t answer_first_ns;      /* time after the call that returned the first answer */
    uint64_t answer_last_ns;       /* and after the one that returned the latest */
    uint64_t answer_first_packets; /* answers that the call of answer_first_ns returned */
    uint64_t answer_errors;
    uint64_t answer_last_errno;
};

int ub_echo_listen(const struct ub_listen_config *config, struct ub_echo_stats *stats);
const char *ub_echo_listen_check(const struct ub_listen_config *config);
int ub_answers_listen(const struct ub_listen_config *config, struct ub_answers_stats *stats);
const char *ub_answers_listen_check(const struct ub_listen_config *config);
