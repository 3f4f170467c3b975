/*
 * Sending frames by AF_XDP: headers, checksums, and which frames the kernel still reads.
 *
 * Owns the descriptors and their completions. Must never let a frame be filled again before its
 * completion. Its semantics are those of __xsk_generic_xmit (net/xdp/xsk.c): a frame that the
 * kernel took completes, also if the device dropped it, which the call tells by EBUSY, for its last
 * frame alone; any other error leaves what it did not take in the ring, where the next call finds
 * it. So frames left there are the next to be offered, and no others are put before they are taken.
 */
#include "datagram.h"
#include "send.h"
#include "xsk.h"

#include <netinet/in.h>
#include <stdlib.h>

enum {
    MASK = UB_XSK_FRAMES - 1,
    IPV4_HEADERS_BYTES = 14 + 20 + 8,
    IPV6_HEADERS_BYTES = 14 + 40 + 8,
    UDP_HEADER_BYTES = 8,
};
static const uint64_t LOOK_NS = 100000; /* between two checks for completions */

/* Frames lie in banks of one batch; a bank is filled again when all its frames are completed. */
struct frames {
    struct ub_xsk *xsk;
    const uint8_t *headers; /* of each flow */
    uint32_t header_bytes;
    uint32_t frame_bytes;
    uint32_t stride_bits; /* a division for each completion would cost as much as the rest of it */
    uint64_t *sums;       /* of each flow: checksum of all that its datagrams have in common */
    uint32_t *flows;      /* whose headers are in a slot, plus 1 */
    uint32_t batch;
    uint32_t bank;
    uint32_t next; /* bank to try if the first one is not free */
};

static const char *check(const struct ub_send_config *config) {
    if (config->xsk == NULL)
        return "xsk: not NULL with af_xdp";
    if (config->headers == NULL)
        return "headers: not NULL with af_xdp";
    if (config->header_bytes != IPV4_HEADERS_BYTES && config->header_bytes != IPV6_HEADERS_BYTES)
        return "header_bytes: 42 or 62";
    if (config->datagram_count != 1 || config->datagrams->bytes != NULL)
        return "datagrams: one, and not the user's, with af_xdp";
    if (config->header_bytes + config->datagrams->size_bytes > config->xsk->stride_bytes)
        return "datagrams: with its headers a frame of xsk";
    if (config->gso_segments > 1)
        return "gso_segments: 0 or 1 with af_xdp";
    if (config->zerocopy)
        return "zerocopy: 0 with af_xdp";
    return NULL;
}

/* ---- checksums -------------------------------------------------------------------------------
 * A ones' complement sum does not depend on the order of its words, nor on that of the bytes within
 * all of them (RFC 1071), so that it is taken as the words lie; what differs between two datagrams
 * of a flow is added to the sum of the rest (RFC 1624).
 */

static uint64_t sum_of(const uint8_t *from, uint32_t bytes) {
    uint64_t sum = 0;
    for (uint32_t at = 0; at < bytes; at += 2) {
        uint16_t word = 0;
        memcpy(&word, from + at, bytes - at < 2 ? 1 : 2);
        sum += word;
    }
    return sum;
}

/* Of addresses, protocol, length, UDP header, and payload but for what changes. */
static uint64_t flow_sum(const struct ub_outbox *box, uint32_t flow, uint32_t size_bytes) {
    const struct frames *frames = box->own;
    const uint8_t *payload = box->payloads;
    const uint8_t *udp =
        frames->headers + (size_t)(flow + 1) * frames->header_bytes - UDP_HEADER_BYTES;
    uint32_t addresses = frames->header_bytes == IPV4_HEADERS_BYTES ? 2 * 4 : 2 * 16;
    uint16_t length = htons((uint16_t)(UDP_HEADER_BYTES + size_bytes));
    uint64_t sum = sum_of(udp - addresses, addresses) + htons(IPPROTO_UDP) + length;
    sum += sum_of(udp, UDP_HEADER_BYTES - sizeof(uint16_t));
    if (!box->headers)
        return sum + sum_of(payload, size_bytes);
    uint32_t tag = htobe32(box->config->tag);
    sum += sum_of((const uint8_t *)&tag, sizeof tag);
    return sum + sum_of(payload + UB_HEADER_BYTES, size_bytes - UB_HEADER_BYTES);
}

/* Flow, sequence number and time, read in the pieces in which ub_header_put has written them. */
static uint64_t changing_sum(const uint8_t *payload) {
    uint64_t number;
    uint16_t time_high;
    uint32_t time_low;
    memcpy(&number, payload + 4, 8);
    memcpy(&time_high, payload + 12, 2);
    memcpy(&time_low, payload + 14, 4);
    return (number & UINT32_MAX) + (number >> 32) + time_high + time_low;
}

static uint16_t checksum_of(uint64_t sum) {
    sum = (sum & UINT32_MAX) + (sum >> 32);
    sum = (sum & UINT16_MAX) + (sum >> 16);
    sum = (sum & UINT16_MAX) + (sum >> 16);
    sum = (sum & UINT16_MAX) + (sum >> 16);
    return sum == UINT16_MAX ? UINT16_MAX : (uint16_t)~sum; /* 0 means: none (RFC 768) */
}

/* ---- the rings ------------------------------------------------------------------------------- */

/* Records which frames the kernel has completed. */
static void reap(struct frames *frames) {
    struct ub_xsk *xsk = frames->xsk;
    const uint64_t *addresses = xsk->completion.entries;
    uint32_t next = *xsk->completion.consumer;
    uint32_t end = __atomic_load_n(xsk->completion.producer, __ATOMIC_ACQUIRE);
    for (; next != end; next++) {
        uint32_t slot = (uint32_t)(addresses[next & MASK] >> frames->stride_bits);
        uint32_t ours = slot - frames->bank * frames->batch < frames->batch;
        xsk->pending[ours ? frames->bank : slot / frames->batch]--;
        xsk->in_flight--;
    }
    __atomic_store_n(xsk->completion.consumer, end, __ATOMIC_RELEASE);
}

/* Frames that the kernel has not taken. It does not always say at once what it took, but what is
 * completed was. */
static uint32_t left_in_ring(const struct ub_xsk *xsk) {
    uint32_t left = *xsk->send.producer - __atomic_load_n(xsk->send.consumer, __ATOMIC_ACQUIRE);
    return left < xsk->in_flight ? left : xsk->in_flight;
}

static void put_frames(struct ub_outbox *box, const struct ub_offer *offer, uint32_t count) {
    struct frames *frames = box->own;
    struct ub_xsk *xsk = frames->xsk;
    struct xdp_desc *descriptors = xsk->send.entries;
    const uint8_t *headers = frames->headers + (size_t)offer->flow * frames->header_bytes;
    uint64_t flow_sum = frames->sums[offer->flow];
    uint32_t producer = *xsk->send.producer;
    for (uint32_t index = 0; index < count; index++) {
        uint32_t slot = box->first_slot + index;
        uint64_t address = (uint64_t)slot * xsk->stride_bytes;
        uint8_t *frame = xsk->memory + address, *payload = frame + frames->header_bytes;
        if (frames->flows[slot] != offer->flow + 1)
            memcpy(frame, headers, frames->header_bytes);
        frames->flows[slot] = offer->flow + 1;
        uint64_t sum = flow_sum + (box->headers ? changing_sum(payload) : 0);
        uint16_t checksum = checksum_of(sum);
        memcpy(payload - sizeof checksum, &checksum, sizeof checksum);
        descriptors[(producer + index) & MASK] =
            (struct xdp_desc){.addr = address, .len = frames->frame_bytes};
    }
}

/* From here on the kernel may take them. */
static void publish(struct frames *frames, uint32_t count) {
    struct ub_xsk *xsk = frames->xsk;
    xsk->pending[frames->bank] = (uint16_t)count;
    xsk->in_flight += count;
    __atomic_store_n(xsk->send.producer, *xsk->send.producer + count, __ATOMIC_RELEASE);
}

/* ---- the way of sending ---------------------------------------------------------------------- */

static int prepare(struct ub_outbox *box, uint32_t batch) {
    const struct ub_send_config *config = box->config;
    struct ub_xsk *xsk = config->xsk;
    uint32_t size_bytes = config->datagrams->size_bytes;
    box->stride_bytes = xsk->stride_bytes;
    box->payloads = xsk->memory + config->header_bytes;
    struct frames *frames = box->own = ub_allocate(sizeof *frames);
    if (frames == NULL)
        return -ENOMEM;
    *frames = (struct frames){.xsk = xsk, .headers = config->headers};
    frames->header_bytes = config->header_bytes;
    frames->frame_bytes = config->header_bytes + size_bytes;
    frames->stride_bits = (uint32_t)__builtin_ctz(xsk->stride_bytes);
    frames->batch = batch;
    frames->sums = ub_allocate(config->flow_count * sizeof *frames->sums);
    frames->flows = ub_allocate(UB_XSK_FRAMES * sizeof *frames->flows);
    if (frames->sums == NULL || frames->flows == NULL)
        return -ENOMEM;
    for (uint32_t slot = 0; slot < UB_XSK_FRAMES; slot++)
        ub_pattern_write(box->payloads + slot * box->stride_bytes, size_bytes);
    for (uint32_t flow = 0; flow < config->flow_count; flow++)
        frames->sums[flow] = flow_sum(box, flow, size_bytes);
    return 0;
}

/* The first bank if it is free, because its lines are in a near cache; else one after another. */
static uint32_t ready(struct ub_outbox *box, const struct ub_offer *offer, uint64_t now_ns) {
    (void)now_ns;
    struct frames *frames = box->own;
    struct ub_xsk *xsk = frames->xsk;
    if (box->left != 0)
        return offer->packets;
    frames->bank = xsk->pending[0] == 0 ? 0 : frames->next;
    if (xsk->pending[frames->bank] != 0)
        reap(frames);
    if (xsk->pending[frames->bank] != 0) {
        (void)ub_xsk_kick(xsk);
        return 0;
    }
    frames->next = (frames->bank + 1) % (UB_XSK_FRAMES / frames->batch);
    box->first_slot = frames->bank * frames->batch;
    return offer->packets;
}

/* What is left lies in the ring as it was. */
static uint32_t fill(struct ub_outbox *box, const struct ub_offer *offer) {
    if (box->left == 0)
        put_frames(box, offer, ub_outbox_fill(box, offer));
    return offer->packets;
}

static int offer_frames(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages) {
    struct frames *frames = box->own;
    if (box->left == 0)
        publish(frames, messages);
    int error = -ub_xsk_kick(frames->xsk);
    reap(frames);
    box->left = left_in_ring(frames->xsk);
    box->left_flow = offer->flow;
    uint32_t taken = messages - box->left;
    switch (error) {
    case 0:
        break;
    case EBUSY: /* the device dropped the last frame taken */
        ub_add(&box->stats->ebusy, 1);
        break;
    case EAGAIN: /* the budget of a call is used up, the device's queue or the socket's is full */
    case ENOBUFS:
    case EINTR:
        return taken != 0 ? (int)taken : -error;
    default: /* ENETDOWN, ENXIO, ENOMEM: frames stay where they are, until the end if it lasts */
        ub_add(&box->stats->refused_calls, 1);
        ub_set(&box->stats->last_errno, (uint64_t)error);
    }
    return (int)taken;
}

/* A descriptor without an address is skipped, and counted as invalid (xskq_cons_is_valid_desc). */
static void take_back(struct ub_outbox *box) {
    struct frames *frames = box->own;
    struct ub_xsk *xsk = frames->xsk;
    struct xdp_desc *descriptors = xsk->send.entries;
    uint32_t producer = *xsk->send.producer;
    for (uint32_t index = 1; index <= box->left; index++)
        descriptors[(producer - index) & MASK] = (struct xdp_desc){.addr = UINT64_MAX};
    xsk->pending[frames->bank] -= (uint16_t)box->left;
    xsk->in_flight -= box->left;
    box->left = 0;
}

/* Waits for frames on their way, a second at most and not after stop, and takes back those that the
 * kernel never took. */
static void finish(struct ub_outbox *box) {
    struct frames *frames = box->own;
    uint64_t now = ub_now_ns(), deadline = now + UB_SECOND_NS;
    take_back(box);
    while (frames->xsk->in_flight != 0 && !ub_stopped(box->config->control) && now < deadline) {
        (void)ub_xsk_kick(frames->xsk);
        reap(frames);
        if (frames->xsk->in_flight != 0)
            ub_sleep_slice(now, now + LOOK_NS);
        now = ub_now_ns();
    }
}

static void release(struct ub_outbox *box) {
    struct frames *frames = box->own;
    if (frames == NULL)
        return;
    free(frames->sums);
    free(frames->flows);
    free(frames);
}

const struct ub_send_way ub_xsk_send_way = {.check = check,
                                            .prepare = prepare,
                                            .ready = ready,
                                            .fill = fill,
                                            .offer = offer_frames,
                                            .finish = finish,
                                            .release = release,
                                            .messages_max = UB_BATCH_MAX,
                                            .returns = 1};
