/*
 * A way of sending: one sendmmsg(2) call a batch, each message one datagram.
 *
 * Owns the messages and their buffers. Must never count or decide what comes next.
 */
#include "internal.h"

#include <stdlib.h>
#include <sys/socket.h>

struct batch {
    struct mmsghdr *messages;
    struct iovec *vectors;
    uint8_t *payloads;
    size_t stride_bytes;
};

/* The bytes behind the header repeat their own position, so that a dump shows what is missing. */
static void fill_payload(uint8_t *payload, uint32_t size_bytes) {
    for (uint32_t at = UB_HEADER_BYTES; at < size_bytes; at++)
        payload[at] = (uint8_t)at;
}

static void release(void *memory) {
    struct batch *batch = memory;
    free(batch->messages);
    free(batch->vectors);
    free(batch->payloads);
    free(batch);
}

static void *prepare(const struct ub_send_config *config) {
    struct batch *batch = ub_allocate(sizeof *batch);
    if (batch == NULL)
        return NULL;
    batch->stride_bytes = ub_lines_bytes(config->size_bytes);
    batch->messages = ub_allocate(config->batch * sizeof *batch->messages);
    batch->vectors = ub_allocate(config->batch * sizeof *batch->vectors);
    batch->payloads = ub_allocate(config->batch * batch->stride_bytes);
    if (batch->messages == NULL || batch->vectors == NULL || batch->payloads == NULL) {
        release(batch);
        return NULL;
    }
    for (uint32_t index = 0; index < config->batch; index++) {
        uint8_t *payload = batch->payloads + index * batch->stride_bytes;
        fill_payload(payload, config->size_bytes);
        batch->vectors[index] = (struct iovec){payload, config->size_bytes};
        batch->messages[index].msg_hdr.msg_iov = &batch->vectors[index];
        batch->messages[index].msg_hdr.msg_iovlen = 1;
    }
    return batch;
}

static int offer(void *memory, const struct ub_send_config *config, uint32_t flow, uint32_t packets,
                 uint64_t now_ns) {
    struct batch *batch = memory;
    uint64_t time_ns = now_ns - config->epoch_ns;
    uint64_t sequence = config->sequences[flow];
    for (uint32_t index = 0; index < packets; index++)
        ub_header_write(batch->payloads + index * batch->stride_bytes, config->tag,
                        config->flows[flow], sequence + index, time_ns);
    int taken = sendmmsg(config->sockets[flow], batch->messages, packets, 0);
    return taken < 0 ? -errno : taken;
}

const struct ub_send_way ub_send_sendmmsg = {prepare, offer, release};
