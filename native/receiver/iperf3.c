/*
 * Reading the datagrams of an iperf3 client: a time and a counter, and bytes that mean nothing.
 *
 * Owns the layout of that header, and what a stream's receiver is asked: jitter, and loss by
 * counters alone. A socket is connected to one client's stream, so which stream a datagram is of
 * is its socket's number. Anybody may have written it: must never trust a length or a counter.
 */
#include "read.h"

#include "series.h"

enum { HELLO_BYTES = 4, NARROW_BYTES = 12, WIDE_BYTES = UB_IPERF3_BYTES };
/* Between two datagrams, in the jitter: a clock that was stepped, or a time that nobody meant. */
#define TRANSIT_MAX_NS (UINT64_C(1) << 40)
#define MILLISECOND_NS 1000000
#define WAITED_MAX_NS UB_SECOND_NS

static uint32_t word_at(const uint8_t *from) {
    uint32_t wire;
    memcpy(&wire, from, sizeof wire);
    return be32toh(wire);
}

/* How far the counter is ahead of the highest so far; 0 or below: it came late, or again. */
static int64_t counter_ahead(const struct ub_iperf3_stream *stream, const uint8_t *bytes,
                             uint32_t wide) {
    if (!wide)
        return (int32_t)(word_at(bytes + 8) - (uint32_t)stream->highest);
    uint64_t counter = (uint64_t)word_at(bytes + 8) << 32 | word_at(bytes + 12);
    return (int64_t)(counter - stream->highest);
}

/* RFC 3550, 6.4.1 and A.8: a sixteenth of each difference, kept in sixteenths. */
static void note_jitter(struct ub_iperf3_stream *stream, uint64_t arrived_ns,
                        const uint8_t *bytes) {
    uint64_t sent_ns =
        word_at(bytes) * (uint64_t)UB_SECOND_NS + word_at(bytes + 4) * UINT64_C(1000);
    uint64_t transit_ns = arrived_ns - sent_ns;
    if (stream->read_packets != 0) {
        uint64_t apart_ns = transit_ns - stream->transit_ns;
        if ((int64_t)apart_ns < 0)
            apart_ns = -apart_ns;
        if (apart_ns > TRANSIT_MAX_NS)
            apart_ns = TRANSIT_MAX_NS;
        ub_add(&stream->jitter_16th_ns, apart_ns - (stream->jitter_16th_ns + 8) / 16);
    }
    ub_set(&stream->transit_ns, transit_ns);
}

/* What iperf3's own server would count: a gap is a loss, and whatever comes behind makes up for a
 * loss, a duplicate too. */
static void note_counter(struct ub_iperf3_stream *stream, int64_t ahead) {
    if (ahead > 0) {
        ub_add(&stream->gap_packets, (uint64_t)ahead - 1);
        ub_set(&stream->highest, stream->highest + (uint64_t)ahead);
    } else {
        ub_add(&stream->behind_packets, 1);
        ub_set(&stream->gap_packets, stream->gap_packets - (stream->gap_packets != 0));
    }
}

/* Returns when it arrived, since the epoch: by the kernel's time, unless a clock was set since. */
static uint64_t note_time(struct ub_tally *tally, struct ub_iperf3_stream *stream,
                          const uint8_t *bytes) {
    const struct ub_receive_config *config = tally->config;
    uint64_t read_ns = tally->realtime_ahead_ns + config->epoch_ns + tally->since_epoch_ns;
    uint64_t stamp_ns = ub_stamp_ns(tally->message), waited_ns = 0;
    if (stamp_ns != 0) {
        waited_ns = read_ns - stamp_ns;
        ub_histogram_add(config->application, (int64_t)waited_ns, 1);
    }
    note_jitter(stream, read_ns - waited_ns, bytes);
    if (waited_ns >= WAITED_MAX_NS || waited_ns > tally->since_epoch_ns)
        return tally->since_epoch_ns;
    return tally->since_epoch_ns - waited_ns;
}

static void put_into_milliseconds(struct ub_tally *tally) {
    uint64_t fresh = tally->arrivals.received - tally->dated;
    if (fresh != 0)
        ub_milliseconds_add(tally->config->milliseconds, tally->arrived_ns, (uint32_t)fresh);
    tally->dated = tally->arrivals.received;
}

/* What came before another millisecond is counted in its own, however long the loop napped. */
static void note_arrival(struct ub_tally *tally, uint64_t arrived_ns) {
    const struct ub_receive_config *config = tally->config;
    if (config->milliseconds != NULL &&
        arrived_ns / MILLISECOND_NS != tally->arrived_ns / MILLISECOND_NS) {
        ub_run_flush(&tally->run, config->window_words, &tally->arrivals);
        put_into_milliseconds(tally);
    }
    tally->arrived_ns = arrived_ns;
}

static void count_packet(struct ub_tally *tally, uint32_t number, const uint8_t *bytes,
                         uint32_t length) {
    const struct ub_receive_config *config = tally->config;
    struct ub_iperf3_stream *stream = &config->streams[number];
    /* The kernel copies a header; a program of the client's would have room for room_bytes. */
    uint32_t copied = length < config->room_bytes ? length : config->room_bytes;
    tally->read++;
    if (copied < (config->wide_counters ? WIDE_BYTES : NARROW_BYTES)) {
        ub_add(&stream->hellos, length == HELLO_BYTES);
        tally->foreign++;
        return;
    }
    if (copied < length) {
        tally->truncated++;
        return;
    }
    int64_t ahead = counter_ahead(stream, bytes, config->wide_counters);
    uint64_t sequence = stream->highest + (uint64_t)ahead;
    if (sequence > UB_SEQUENCE_MASK) { /* no test holds so many: sums of it would wrap */
        tally->foreign++;
        return;
    }
    note_arrival(tally,
                 config->timestamps ? note_time(tally, stream, bytes) : tally->since_epoch_ns);
    note_counter(stream, ahead);
    ub_add(&stream->read_packets, 1);
    ub_add(&stream->read_bytes, length);
    struct ub_run *run = &tally->run;
    uint64_t word = sequence / UB_WINDOW_WORD_PACKETS;
    if (run->state == NULL || run->number != word) {
        ub_run_flush(run, config->window_words, &tally->arrivals);
        ub_run_begin(run, ub_flow_state_at(config->flows, config->window_words, number), number,
                     word);
    }
    if (length != tally->usual_bytes)
        ub_run_note_length(run, sequence, length);
    ub_run_note(run, sequence);
}

void ub_read_iperf3(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally) {
    const struct ub_receive_config *config = tally->config;
    uint32_t number = 0;
    while (number + 1 < config->socket_count && config->sockets[number] != tally->socket)
        number++;
    for (uint32_t index = 0; index < messages; index++) {
        tally->message = &inbox->messages[index];
        count_packet(tally, number, inbox->vectors[index].iov_base, tally->message->msg_len);
    }
    ub_run_flush(&tally->run, config->window_words, &tally->arrivals);
    if (config->milliseconds != NULL)
        put_into_milliseconds(tally);
}
