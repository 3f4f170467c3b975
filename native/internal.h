/*
 * What the loops share among themselves, and the only file that includes udpbench.h.
 *
 * Owns the clock, the header, the pacer and the window; sending.h and receiving.h own the shapes of
 * a way. Must never hold anything Python may call: that stands in udpbench.h.
 */
#ifndef UB_INTERNAL_H
#define UB_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sendmmsg, recvmmsg, sched_getcpu */
#endif

#include <endian.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "udpbench.h"

#define UB_SECOND_NS UINT64_C(1000000000)
#define UB_SLICE_NS UINT64_C(50000000) /* longest sleep between two looks at control->stop */
#define UB_PAYLOAD_BYTES_MAX ((uint32_t)UB_MESSAGE_BYTES_MAX)
#define UB_ROOM_BYTES_MAX UINT32_C(65536)
#define UB_FLOWS_MAX UINT32_C(65536) /* the header's flow number is 16 bits wide */
#define UB_RATE_PPS_MAX UB_SECOND_NS /* above it ub_pacer_packets would overflow */
#define UB_WORK_NS_MAX UB_SECOND_NS  /* with UB_BATCH_MAX datagrams still far from overflow */
#define UB_WINDOW_WORDS_MAX (UINT32_C(1) << 24) /* 128 MiB a flow; leaves 19 bits of lap */
#define UB_SEQUENCE_MASK ((UINT64_C(1) << 48) - 1)

/* ---- clock, stop and counters -------------------------------------------------------------- */

static inline uint64_t ub_clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * UB_SECOND_NS + (uint64_t)now.tv_nsec;
}

static inline uint64_t ub_now_ns(void) {
    return ub_clock_ns(CLOCK_MONOTONIC);
}

static inline int ub_stopped(const struct ub_control *control) {
    return __atomic_load_n(&control->stop, __ATOMIC_RELAXED) != 0;
}

/* Each counter has one writer, so a plain read of the old value is enough; the store is atomic
 * because the sampling thread reads at any time, and must never see half a value. */
static inline void ub_set(uint64_t *counter, uint64_t value) {
    __atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static inline void ub_add(uint64_t *counter, uint64_t amount) {
    ub_set(counter, *counter + amount);
}

/* Sleeps until a time, at most one slice, so that a caller in a loop sees stop promptly. */
void ub_sleep_slice(uint64_t now_ns, uint64_t until_ns);

/* 0 if a call on this blocking socket comes back by itself, else -EINVAL or getsockopt's -errno. */
int ub_socket_comes_back(int socket, int timeout_option);

/* Zeroed, cache-line aligned and touched, so that its pages lie where the calling thread runs. */
void *ub_allocate(size_t bytes);

/* Whole segments of a message, and the rest as one more. */
static inline uint32_t ub_segments(uint32_t total, uint32_t each) {
    return (total + each - 1) / each;
}

static inline size_t ub_lines_bytes(size_t bytes) {
    return (bytes + UB_CACHE_LINE_BYTES - 1) / UB_CACHE_LINE_BYTES * UB_CACHE_LINE_BYTES;
}

/* ---- header ---------------------------------------------------------------------------------- */

struct ub_header {
    uint32_t tag;
    uint16_t flow;
    uint64_t sequence;
};

/* Both are inline: 0.8 ns to write a header, against 2.3 ns by a call of its own. Flow and sequence
 * lie side by side and are read as one 64-bit word: a word put together from smaller stores is read
 * back before they are through, and the CPU stalls. Measured on x86-64, one flow in order: 6.5 ns
 * to account a datagram, against 16 ns with the six bytes copied apart. */
static inline void ub_header_put(uint8_t *to, const struct ub_header *header, uint64_t time_ns) {
    uint32_t tag_wire = htobe32(header->tag);
    uint64_t number_wire =
        htobe64((uint64_t)header->flow << 48 | (header->sequence & UB_SEQUENCE_MASK));
    uint16_t time_high_wire = htobe16((uint16_t)(time_ns >> 32));
    uint32_t time_low_wire = htobe32((uint32_t)time_ns);
    memcpy(to, &tag_wire, 4);
    memcpy(to + 4, &number_wire, 8);
    memcpy(to + 12, &time_high_wire, 2);
    memcpy(to + 14, &time_low_wire, 4);
}

/* The time alone: most readers want none. */
static inline uint64_t ub_header_time_ns(const uint8_t *from) {
    uint64_t last_wire; /* two bytes of the sequence number, then the time */
    memcpy(&last_wire, from + 10, 8);
    return be64toh(last_wire) & UB_SEQUENCE_MASK;
}

static inline void ub_header_read(const uint8_t *from, struct ub_header *header) {
    uint32_t tag_wire;
    uint64_t number_wire;
    memcpy(&tag_wire, from, 4);
    memcpy(&number_wire, from + 4, 8);
    uint64_t number = be64toh(number_wire);
    header->tag = be32toh(tag_wire);
    header->flow = (uint16_t)(number >> 48);
    header->sequence = number & UB_SEQUENCE_MASK;
}

/* ---- distributions and series ---------------------------------------------------------------- */

static inline uint32_t ub_bucket(uint64_t value) {
    enum { STEP_BITS = 7 };
    _Static_assert(UB_HISTOGRAM_STEPS == 1 << STEP_BITS, "so many bits below the leading one");
    if (value < UB_HISTOGRAM_STEPS)
        return (uint32_t)value;
    uint32_t leading = 63 - (uint32_t)__builtin_clzll(value);
    uint32_t bucket = (leading - STEP_BITS + 1) * UB_HISTOGRAM_STEPS +
                      (uint32_t)(value >> (leading - STEP_BITS)) % UB_HISTOGRAM_STEPS;
    return bucket < UB_HISTOGRAM_BUCKETS ? bucket : UB_HISTOGRAM_BUCKETS - 1;
}

static inline void ub_histogram_add(struct ub_histogram *histogram, int64_t value) {
    ub_add(value < 0 ? &histogram->below_zero : &histogram->counts[ub_bucket((uint64_t)value)], 1);
}

void ub_milliseconds_add(struct ub_milliseconds *milliseconds, uint64_t since_start_ns,
                         uint32_t packets);
void ub_stalls_add(struct ub_stalls *stalls, struct ub_stall stall);

/* ---- pacer ----------------------------------------------------------------------------------- */

/* Packet n, counted from 0, is due n / rate after the start: deadlines are absolute, so that a
 * late wake-up delays one packet and does not lower the average. */
struct ub_pacer {
    uint64_t rate_pps; /* 0: unlimited */
    uint64_t start_ns;
    uint64_t end_ns;
    uint64_t leave_ns;       /* end, plus the debt that may still be made up */
    uint64_t bucket_packets; /* holds a whole message at least */
    uint64_t given;          /* used by attempts or swallowed by a stall */
    uint32_t sleeps;
    struct ub_stalls *stalls; /* NULL: none */
};

/* When one packet after the other is due, without a division for each. */
struct ub_due {
    uint64_t since_start_ns; /* rounded up: never early */
    uint64_t whole_ns;       /* step, and its rest in parts of rate_pps */
    uint64_t rest;
    uint64_t lacking; /* that the rounding up has added, in the same parts */
    uint64_t rate_pps;
};

struct ub_due ub_due_at(uint64_t packet, uint64_t rate_pps);

static inline void ub_due_next(struct ub_due *due) {
    due->since_start_ns += due->whole_ns;
    if (due->rest > due->lacking) {
        due->since_start_ns++;
        due->lacking += due->rate_pps;
    }
    due->lacking -= due->rest;
}

uint64_t ub_pacer_packets(uint64_t elapsed_ns, uint64_t rate_pps);
uint64_t ub_pacer_elapsed_ns(uint64_t packets, uint64_t rate_pps);
void ub_pacer_init(struct ub_pacer *pacer, const struct ub_send_config *config);
uint64_t ub_pacer_owed(const struct ub_pacer *pacer, uint64_t now_ns);
uint64_t ub_pacer_available(struct ub_pacer *pacer, uint64_t now_ns, uint64_t *stalled);
void ub_pacer_give_up(struct ub_pacer *pacer, uint64_t packets, uint64_t *stalled);
uint64_t ub_pacer_wait(const struct ub_pacer *pacer, uint64_t now_ns, uint64_t packets,
                       const struct ub_control *control);

/* ---- window ---------------------------------------------------------------------------------- */

/* One flow, followed by the next one at ub_flow_state_stride. The counts fill a line of their own,
 * because every run of every worker writes them. */
struct ub_flow_state {
    uint64_t packets;
    uint64_t highest;
    uint64_t reserved[6];
    uint64_t words[]; /* lap << 32 | bitmap; a bitmap of 0 is a word never used, of any lap */
};

/* Consecutive datagrams of one flow that fall into one window word, not yet in the window. */
struct ub_run {
    struct ub_flow_state *state; /* NULL: none */
    uint64_t number;             /* of the word, counted from sequence number 0 */
    uint64_t highest;            /* the flow's, as known: when the run began, and by the run */
    uint32_t seen;
    uint32_t tails;    /* those of `seen` that are tail_bytes long */
    uint32_t late;     /* those of `seen` that were below `highest` */
    uint64_t repeated; /* datagrams that `seen` had already */
    uint32_t flow;
};

/* What runs came to, in datagrams. */
struct ub_arrivals {
    uint64_t received;
    uint64_t received_tails;
    uint64_t duplicate;
    uint64_t late;
    uint64_t ancient;
};

struct ub_flow_state *ub_flow_state_at(struct ub_flow_state *flows, uint32_t window_words,
                                       uint32_t flow);
void ub_run_begin(struct ub_run *run, struct ub_flow_state *state, uint32_t flow, uint64_t number);
void ub_run_flush(struct ub_run *run, uint32_t window_words, struct ub_arrivals *arrivals);

/* Notes a datagram of the flow and word that the run is about. */
static inline void ub_run_note(struct ub_run *run, uint64_t sequence) {
    uint32_t bit = UINT32_C(1) << (sequence % UB_WINDOW_WORD_PACKETS);
    if (run->seen & bit) {
        run->repeated++;
        return;
    }
    run->seen |= bit;
    if (run->highest == 0) { /* the flow's first */
        run->highest = sequence + 1;
        return;
    }
    /* The header carries 48 bits; the distance to the highest, as a signed 48-bit number, carries
     * it on beyond them (serial arithmetic, RFC 1982). The shift makes bit 47 the sign. */
    int64_t ahead = (int64_t)((sequence - (run->highest - 1)) << 16) / 65536;
    if (ahead > 0)
        run->highest += (uint64_t)ahead;
    else if (ahead < 0)
        run->late |= bit;
}

#endif
