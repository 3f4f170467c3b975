/*
 * What receiver.c and the ways of receiving, waiting and reading share.
 *
 * Owns the shape of each: a call fetches messages, a wait says from which socket and when, a read
 * accounts for them. Any call goes with any wait and any read. Must never hold anything a sender
 * needs.
 */
#ifndef UB_RECEIVING_H
#define UB_RECEIVING_H

#include "internal.h"

#include <netinet/udp.h>
#include <sys/socket.h>

#ifndef UDP_GRO
#define UDP_GRO 104 /* include/uapi/linux/udp.h, since Linux 5.0 */
#endif

#define UB_SOCKETS_MAX UINT32_C(65536)

/* ---- messages -------------------------------------------------------------------------------- */

struct ub_inbox {
    struct mmsghdr *messages;
    struct iovec *vectors;
    uint8_t *controls; /* for UDP_GRO, time stamps and echoes; NULL without */
    uint8_t *names;    /* where datagrams come from, for echoes; NULL without */
    uint8_t *room;
    uint32_t batch;
    uint32_t room_bytes; /* of each message; 0 where nothing is copied */
};

int ub_inbox_make(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                  uint32_t room_bytes);
void ub_inbox_release(struct ub_inbox *inbox);
void ub_inbox_renew(struct ub_inbox *inbox, uint32_t messages);

/* ---- a way of receiving ---------------------------------------------------------------------- */

struct ub_receive_way {
    /* One call with MSG_TRUNC, so that lengths are those on the wire: the number of messages it
     * returned, or -errno. Flags 0 blocks for the first message and no longer. */
    int (*receive)(struct ub_inbox *inbox, int socket, int flags);
    uint32_t messages_max; /* that one call can return */
};

extern const struct ub_receive_way ub_receive_recv;
extern const struct ub_receive_way ub_receive_recvmmsg;

/* ---- a way of waiting ------------------------------------------------------------------------ */

struct ub_turns {
    const struct ub_receive_config *config;
    struct ub_receive_stats *stats;
    const int32_t *sockets;
    uint32_t socket_count;
    uint32_t batch;
    uint32_t next;     /* of the sockets, or of the ready ones */
    uint32_t ready;    /* that epoll told of */
    uint32_t full;     /* batches in this round */
    int epoll;         /* -1: none */
    uint64_t until_ns; /* of a nap */
    void *events;
};

struct ub_wait_way {
    /* What the wait needs beyond sockets: 0 or -errno; NULL where it is nothing. */
    int (*prepare)(struct ub_turns *turns);
    /* The socket to receive from now, or -1 where it came to none within a slice. */
    int (*next)(struct ub_turns *turns);
    /* Told how many messages came from it; NULL where that is no matter. */
    void (*told)(struct ub_turns *turns, uint32_t messages);
    void (*release)(struct ub_turns *turns);
    int flags; /* of the receiving call */
    uint32_t sockets_max;
};

extern const struct ub_wait_way ub_wait_block;
extern const struct ub_wait_way ub_wait_epoll;
extern const struct ub_wait_way ub_wait_spin;
extern const struct ub_wait_way ub_wait_nap;

int ub_turns_next(struct ub_turns *turns);

/* ---- a way of reading ------------------------------------------------------------------------ */

/* The account of what one call returned. */
struct ub_tally {
    const struct ub_receive_config *config;
    const uint8_t *pattern; /* of a whole datagram */
    struct ub_run run;
    struct ub_arrivals arrivals;
    uint64_t read;
    uint64_t foreign;
    uint64_t truncated;
    uint64_t corrupt;
    uint64_t since_epoch_ns;       /* when the call had returned */
    uint64_t realtime_ahead_ns;    /* of CLOCK_MONOTONIC; with timestamps */
    const struct mmsghdr *message; /* that the datagram came in */
    int socket;
    uint64_t unlogged;
    uint64_t echoed;
    uint64_t unechoed;
};

/* What a datagram of ours leaves beside its count, where the config asks for it. */
int ub_log_valid(const struct ub_log *log);
int ub_log_put(struct ub_log *log, const struct ub_log_frame *frame, const uint8_t *bytes);
void ub_echo(struct ub_tally *tally, const uint8_t *header);
void ub_note_stamp(const struct ub_tally *tally, const uint8_t *header);

/* How far CLOCK_REALTIME is ahead of CLOCK_MONOTONIC, which was just read: it is read between two
 * of the other, again where somebody else had the CPU meanwhile, and not for ever. */
uint64_t ub_realtime_ahead_ns(uint64_t now_ns);

static inline void ub_note_log(struct ub_tally *tally, const uint8_t *bytes, uint32_t length) {
    const struct ub_receive_config *config = tally->config;
    struct ub_log_frame frame = {config->epoch_ns + tally->since_epoch_ns, length, length};
    tally->unlogged += ub_log_put(config->log, &frame, bytes) == 0;
}

struct ub_read_way {
    /* Tells the tally of every datagram in the first `messages` ones. */
    void (*account)(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally);
    uint32_t sees_header;
    uint32_t copies;
};

extern const struct ub_read_way ub_read_none;
extern const struct ub_read_way ub_read_copy;
extern const struct ub_read_way ub_read_header;
extern const struct ub_read_way ub_read_verify;

/* Bytes of each datagram in a message, of its last one at most. The kernel tells them where it has
 * merged several (net/ipv4/udp.c, udp_cmsg_recv). */
static inline uint32_t ub_segment_bytes(const struct mmsghdr *message) {
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message->msg_hdr);
    int segment_bytes = 0;
    for (; header != NULL;
         header = CMSG_NXTHDR((struct msghdr *)&message->msg_hdr, (struct cmsghdr *)header))
        if (header->cmsg_level == SOL_UDP && header->cmsg_type == UDP_GRO)
            memcpy(&segment_bytes, CMSG_DATA(header), sizeof segment_bytes);
    return segment_bytes > 0 ? (uint32_t)segment_bytes : message->msg_len;
}

/* A datagram: where it lies, its length on the wire, and how much of it is there. */
typedef void (*ub_note)(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                        uint32_t there);

/* Inline and with a constant `note`, so that each way of reading is a loop without a choice or a
 * call for each datagram. */
static inline __attribute__((always_inline)) void ub_each_datagram(const struct ub_inbox *inbox,
                                                                   uint32_t messages,
                                                                   struct ub_tally *tally,
                                                                   ub_note note) {
    for (uint32_t index = 0; index < messages; index++) {
        const struct mmsghdr *message = &inbox->messages[index];
        const uint8_t *bytes = inbox->vectors[index].iov_base;
        tally->message = message;
        uint32_t segment_bytes = ub_segment_bytes(message);
        uint32_t left = message->msg_len;
        uint32_t room = inbox->room_bytes;
        do { /* a datagram without payload is one, too */
            uint32_t length = left < segment_bytes ? left : segment_bytes;
            uint32_t there = length < room ? length : room;
            note(tally, bytes, length, there);
            bytes += there;
            room -= there;
            left -= length;
        } while (left != 0);
    }
}

/* The order decides: whose is it, is it whole, has it our size, is it as it was sent, have we seen
 * it. `pattern` is NULL where the bytes behind the header are not looked at. */
static inline __attribute__((always_inline)) void ub_note_header(struct ub_tally *tally,
                                                                 const uint8_t *bytes,
                                                                 uint32_t length, uint32_t there,
                                                                 const uint8_t *pattern) {
    const struct ub_receive_config *config = tally->config;
    struct ub_header header;
    tally->read++;
    if (there < UB_HEADER_BYTES) {
        /* Cut off before the end of its header it may be anyone's; that it was cut is certain. */
        *(there < length ? &tally->truncated : &tally->foreign) += 1;
        return;
    }
    ub_header_read(bytes, &header);
    if (header.tag != config->tag || header.flow >= config->flow_count) {
        tally->foreign++;
        return;
    }
    if (there < length) {
        tally->truncated++;
        return;
    }
    if ((length != config->size_bytes && length != config->tail_bytes) ||
        (pattern != NULL && memcmp(bytes + UB_HEADER_BYTES, pattern + UB_HEADER_BYTES,
                                   length - UB_HEADER_BYTES) != 0)) {
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
    if (config->log != NULL)
        ub_note_log(tally, bytes, length);
    if (config->echo_every != 0 && header.sequence % config->echo_every == 0)
        ub_echo(tally, bytes);
    if (config->timestamps)
        ub_note_stamp(tally, bytes);
    if (config->delay != NULL) {
        /* Both are 48 bits wide, and so is their difference: the shift makes bit 47 its sign. */
        uint64_t apart_ns = tally->since_epoch_ns - ub_header_time_ns(bytes);
        ub_histogram_add(config->delay, (int64_t)(apart_ns << 16) / 65536);
    }
    if (length != config->size_bytes)
        run->tails |= UINT32_C(1) << (header.sequence % UB_WINDOW_WORD_PACKETS);
    ub_run_note(run, header.sequence);
}

#endif
