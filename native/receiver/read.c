/*
 * The ways of reading: the header, the header and every byte behind it, lengths with or without a
 * copy of the payload.
 *
 * Owns the table of all ways, and what a datagram counts as. `none` and `copy` look at lengths
 * alone and must never claim to know whose a datagram is; `header` must never look at a byte behind
 * it; `verify` must never accept a datagram that is not as it was sent.
 */
#include "read.h"

#include "series.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* ---- the datagrams of messages --------------------------------------------------------------- */

/* Bytes of each datagram in a message but the last, which may be shorter. The kernel says so if it
 * merged several (net/ipv4/udp.c, udp_cmsg_recv). */
static inline uint32_t segment_bytes_of(const struct mmsghdr *message) {
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message->msg_hdr);
    int segment_bytes = 0;
    for (; header != NULL;
         header = CMSG_NXTHDR((struct msghdr *)&message->msg_hdr, (struct cmsghdr *)header))
        if (header->cmsg_level == SOL_UDP && header->cmsg_type == UDP_GRO)
            memcpy(&segment_bytes, CMSG_DATA(header), sizeof segment_bytes);
    return segment_bytes > 0 ? (uint32_t)segment_bytes : message->msg_len;
}

/* Counts a datagram, given its length on the wire and how much of it was copied. */
typedef void (*count_datagram)(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                               uint32_t copied);

/* Inline and with a constant `count`, so that each way of reading is a loop without a choice or a
 * call for each datagram. */
ALWAYS_INLINE void each_datagram(const struct ub_inbox *inbox, uint32_t messages,
                                 struct ub_tally *tally, count_datagram count) {
    for (uint32_t index = 0; index < messages; index++) {
        const struct mmsghdr *message = &inbox->messages[index];
        const uint8_t *bytes = inbox->vectors[index].iov_base;
        tally->message = message;
        uint32_t segment_bytes = segment_bytes_of(message);
        uint32_t rest = message->msg_len;
        uint32_t room = inbox->room_bytes;
        do { /* an empty datagram counts, too */
            uint32_t length = rest < segment_bytes ? rest : segment_bytes;
            uint32_t copied = length < room ? length : room;
            count(tally, bytes, length, copied);
            bytes += copied;
            room -= copied;
            rest -= length;
        } while (rest != 0);
    }
}

/* Whether a datagram of this run has that length. */
ALWAYS_INLINE int is_sent(const struct ub_tally *tally, uint32_t length) {
    const struct ub_receive_config *config = tally->config;
    if (length == tally->usual_bytes)
        return 1;
    for (uint32_t index = 1; index < config->datagram_count; index++)
        if (length == config->datagrams[index].size_bytes)
            return 1;
    return 0;
}

static inline void put_into_log(struct ub_tally *tally, const uint8_t *bytes, uint32_t length) {
    const struct ub_receive_config *config = tally->config;
    struct ub_log_frame frame = {config->epoch_ns + tally->since_epoch_ns, length, length};
    tally->unlogged += ub_log_put(config->log, &frame, bytes) == 0;
}

/* ---- header and verify ----------------------------------------------------------------------- */

static inline void note_delay(struct ub_tally *tally, uint64_t sent_ns, uint32_t packets) {
    if (tally->config->delay != NULL)
        ub_histogram_add(tally->config->delay, ub_signed48(tally->since_epoch_ns - sent_ns),
                         packets);
}

/* What is recorded of our datagrams besides their count. */
ALWAYS_INLINE void note_own(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                            const struct ub_header *header) {
    const struct ub_receive_config *config = tally->config;
    if (config->log != NULL)
        put_into_log(tally, bytes, length);
    if (config->echo_every != 0 && header->sequence % config->echo_every == 0)
        ub_echo(tally, bytes, header->flow);
    if (config->timestamps)
        ub_note_stamp(tally, bytes);
    note_delay(tally, ub_header_time_ns(bytes), 1);
}

ALWAYS_INLINE int is_pattern(const uint8_t *bytes, uint32_t length, const uint8_t *pattern) {
    return pattern == NULL || memcmp(bytes + UB_HEADER_BYTES, pattern + UB_HEADER_BYTES,
                                     length - UB_HEADER_BYTES) == 0;
}

/* The order decides: whose is it, is it whole, has it our size, is it as it was sent. `pattern` is
 * NULL if the bytes behind the header are not looked at. Counts foreign, truncated and corrupt
 * ones. */
ALWAYS_INLINE int is_own(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                         uint32_t copied, const uint8_t *pattern, struct ub_header *header) {
    const struct ub_receive_config *config = tally->config;
    if (copied < UB_HEADER_BYTES) {
        /* Truncated within its header its origin is unknown; only the truncation is certain. */
        if (copied < length)
            tally->truncated++;
        else
            tally->foreign++;
        return 0;
    }
    ub_header_read(bytes, header);
    if (header->tag != config->tag || header->flow >= config->flow_count) {
        tally->foreign++;
        return 0;
    }
    if (copied < length) {
        tally->truncated++;
        return 0;
    }
    if (!is_sent(tally, length) || !is_pattern(bytes, length, pattern)) {
        tally->corrupt++;
        return 0;
    }
    return 1;
}

/* Accounts for all datagrams of the streak but its first. */
ALWAYS_INLINE void end_streak(struct ub_tally *tally) {
    struct ub_streak *streak = &tally->streak;
    if (streak->packets != 0) {
        tally->read += streak->packets;
        ub_run_note_range(&tally->run, (streak->next - streak->packets) & UB_SEQUENCE_MASK,
                          streak->packets);
    }
    if (streak->delayed != 0)
        note_delay(tally, streak->time_ns, streak->delayed);
    streak->packets = streak->delayed = streak->left = 0;
}

/* Datagrams mostly come in order, and those of a sender without a rate with one time for each call.
 * Such a streak within a word of the window is accounted for at once. Measured with GRO, 32 B, on
 * x86-64: the reader spends 6 ns of user time on a datagram, against 12.5 ns by itself. */
ALWAYS_INLINE int extend_streak(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                                uint32_t copied, const uint8_t *pattern) {
    struct ub_streak *streak = &tally->streak;
    if (streak->left == 0 || length != tally->usual_bytes || copied < length ||
        ub_header_tag(bytes) != tally->config->tag || ub_header_number(bytes) != streak->next ||
        !is_pattern(bytes, length, pattern))
        return 0;
    uint64_t time_ns = ub_header_time_ns(bytes);
    if (time_ns != streak->time_ns) {
        if (streak->delayed != 0)
            note_delay(tally, streak->time_ns, streak->delayed);
        streak->time_ns = time_ns;
        streak->delayed = 0;
    }
    streak->delayed++;
    streak->left--;
    streak->next++;
    streak->packets++;
    return 1;
}

ALWAYS_INLINE void count_own(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                             uint32_t copied, const uint8_t *pattern) {
    const struct ub_receive_config *config = tally->config;
    struct ub_header header;
    if (extend_streak(tally, bytes, length, copied, pattern))
        return;
    end_streak(tally);
    tally->read++;
    if (!is_own(tally, bytes, length, copied, pattern, &header))
        return;
    struct ub_run *run = &tally->run;
    uint64_t number = header.sequence / UB_WINDOW_WORD_PACKETS;
    if (run->state == NULL || run->number != number || run->flow != header.flow) {
        ub_run_flush(run, config->window_words, &tally->arrivals);
        ub_run_begin(run, ub_flow_state_at(config->flows, config->window_words, header.flow),
                     header.flow, number);
    }
    note_own(tally, bytes, length, &header);
    if (length != tally->usual_bytes)
        ub_run_note_length(run, header.sequence, length);
    ub_run_note(run, header.sequence);
    if (!tally->notes_each && length == tally->usual_bytes)
        tally->streak = (struct ub_streak){
            .next = ub_header_number(bytes) + 1,
            .time_ns = ub_header_time_ns(bytes),
            .left =
                UB_WINDOW_WORD_PACKETS - 1 - (uint32_t)(header.sequence % UB_WINDOW_WORD_PACKETS),
        };
}

static inline void count_header(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                                uint32_t copied) {
    count_own(tally, bytes, length, copied, NULL);
}

static inline void count_verified(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                                  uint32_t copied) {
    count_own(tally, bytes, length, copied, tally->pattern);
}

static void read_header(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally) {
    each_datagram(inbox, messages, tally, count_header);
    end_streak(tally);
}

static void read_verify(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally) {
    each_datagram(inbox, messages, tally, count_verified);
    end_streak(tally);
}

/* ---- copy and none --------------------------------------------------------------------------- */

static inline void count_by_length(struct ub_tally *tally, uint32_t length, int truncated) {
    tally->read++;
    if (truncated) {
        tally->truncated++;
    } else if (length == tally->usual_bytes) {
        tally->arrivals.received++;
    } else if (is_sent(tally, length)) {
        tally->arrivals.received++;
        tally->arrivals.others++;
        tally->arrivals.others_bytes += length;
    } else {
        tally->foreign_size++;
    }
}

static inline void count_copied(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                                uint32_t copied) {
    uint64_t before = tally->arrivals.received;
    count_by_length(tally, length, copied < length);
    if (tally->config->log != NULL && tally->arrivals.received != before)
        put_into_log(tally, bytes, length);
}

static inline void count_length(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                                uint32_t copied) {
    (void)bytes;
    (void)copied;
    count_by_length(tally, length, 0);
}

static void read_copy(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally) {
    each_datagram(inbox, messages, tally, count_copied);
}

static void read_none(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally) {
    each_datagram(inbox, messages, tally, count_length);
}

enum { ALL = UB_ROOM_BYTES_MAX };

/* A new way of reading is a row here, a constant of enum ub_read, and a row of READS in
 * udpbench/ways.py. */
static const struct ub_read_way ways[] = {
    [UB_READ_HEADER] = {read_header, .sees_header = 1, .copied_bytes = ALL, .stamps = 1},
    [UB_READ_COPY] = {read_copy, .copied_bytes = ALL},
    [UB_READ_NONE] = {read_none},
    [UB_READ_VERIFY] = {read_verify, .sees_header = 1, .copied_bytes = ALL, .stamps = 1},
    [UB_READ_IPERF3] = {ub_read_iperf3, .copied_bytes = UB_IPERF3_BYTES, .stamps = 1, .dates = 1},
};

const struct ub_read_way *ub_read_way_of(uint32_t read) {
    return read < sizeof ways / sizeof *ways ? &ways[read] : NULL;
}
