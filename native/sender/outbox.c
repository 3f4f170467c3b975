/*
 * The messages that a sender offers: buffers, payloads, headers and control messages.
 */
#include "outbox.h"

#include "datagram.h"
#include "ids.h"

#include <stdlib.h>

enum { CONTROL_BYTES = CMSG_SPACE(sizeof(uint16_t)) };

struct ub_outbox ub_outbox_of(const struct ub_send_config *config, struct ub_send_stats *stats) {
    uint32_t merges = config->gso_segments > 1, count = config->datagram_count;
    const struct ub_datagram *first = config->datagrams;
    return (struct ub_outbox){
        .config = config,
        .stats = stats,
        .segments = merges ? config->gso_segments : 1,
        .turns = merges ? 1 : count,
        .last = merges ? count - 1 : 0,
        .varies = count > 1 || merges || first->bytes != NULL,
        .headers = first->bytes == NULL && first->size_bytes >= UB_HEADER_BYTES,
    };
}

void ub_outbox_finish(struct ub_outbox *box) {
    if (box->config->zerocopy)
        ub_zerocopy_finish(&box->zerocopy);
}

void ub_outbox_release(struct ub_outbox *box) {
    ub_zerocopy_release(&box->zerocopy);
    free(box->messages);
    free(box->vectors);
    free(box->controls);
    free(box->payloads);
}

static void prepare_control(const struct ub_outbox *box, struct msghdr *message, uint8_t *control) {
    uint16_t segment_bytes = (uint16_t)box->config->datagrams->size_bytes;
    message->msg_control = control;
    message->msg_controllen = CONTROL_BYTES;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof segment_bytes);
    memcpy(CMSG_DATA(header), &segment_bytes, sizeof segment_bytes);
}

static void prepare_slot(struct ub_outbox *box, uint32_t slot, uint32_t longest_bytes) {
    uint8_t *payload = box->payloads + slot * box->stride_bytes;
    for (uint32_t packet = 0; packet < box->segments; packet++)
        ub_pattern_write(payload + (size_t)packet * longest_bytes, longest_bytes);
    struct msghdr *message = &box->messages[slot].msg_hdr;
    box->vectors[slot] = (struct iovec){payload, box->config->datagrams->size_bytes};
    message->msg_iov = &box->vectors[slot];
    message->msg_iovlen = 1;
    if (box->controls != NULL)
        prepare_control(box, message, box->controls + (size_t)slot * CONTROL_BYTES);
}

int ub_outbox_prepare(struct ub_outbox *box, uint32_t batch) {
    const struct ub_send_config *config = box->config;
    uint32_t slots = batch;
    if (config->zerocopy) {
        int error = ub_zerocopy_prepare(&box->zerocopy, config, box->stats, batch);
        if (error != 0)
            return error;
        slots *= box->zerocopy.banks;
    }
    uint32_t longest_bytes = ub_longest_bytes(config->datagrams, config->datagram_count);
    /* At least one line, even for datagrams without payload. */
    box->stride_bytes = ub_lines_bytes((size_t)box->segments * longest_bytes + 1);
    box->messages = ub_allocate(slots * sizeof *box->messages);
    box->vectors = ub_allocate(slots * sizeof *box->vectors);
    box->payloads = ub_allocate(slots * box->stride_bytes);
    if (box->segments > 1)
        box->controls = ub_allocate((size_t)slots * CONTROL_BYTES);
    if (box->messages == NULL || box->vectors == NULL || box->payloads == NULL ||
        (box->segments > 1 && box->controls == NULL))
        return -ENOMEM;
    for (uint32_t slot = 0; slot < slots; slot++)
        prepare_slot(box, slot, longest_bytes);
    return 0;
}

uint32_t ub_outbox_ready(struct ub_outbox *box, const struct ub_offer *offer, uint64_t now_ns) {
    const struct ub_send_config *config = box->config;
    uint32_t packets = offer->packets;
    if (config->ids != NULL)
        packets = ub_ids_ready(config, box->stats, offer->flow, packets, now_ns);
    if (packets == 0 || !config->zerocopy)
        return packets;
    if (!ub_zerocopy_ready(&box->zerocopy))
        return 0;
    box->first_slot = box->zerocopy.bank * box->zerocopy.batch;
    return packets;
}

void ub_outbox_offered(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages,
                       int result) {
    if (box->config->ids != NULL)
        ub_ids_sent(box->config, offer->flow, messages, result < 0 ? 0 : (uint32_t)result);
    if (box->config->zerocopy)
        ub_zerocopy_offered(&box->zerocopy, offer->flow, messages, result);
}

uint64_t ub_outbox_bytes(const struct ub_outbox *box, uint32_t messages, uint64_t packets) {
    const struct ub_datagram *first = box->config->datagrams;
    uint64_t bytes = 0;
    if (box->turns == 1)
        return (packets - messages) * first->size_bytes +
               (uint64_t)messages * first[box->last].size_bytes;
    for (uint32_t message = 0; message < messages; message++)
        bytes += box->vectors[box->first_slot + message].iov_len;
    return bytes;
}

/* Sets what messages consist of: how many bytes, and which if they are the user's: his own, or with
 * an id a copy of them. */
static void shape(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages) {
    const struct ub_send_config *config = box->config;
    uint32_t turn = (uint32_t)(config->sequences[offer->flow] % box->turns);
    struct ub_due due = offer->due;
    for (uint32_t message = 0; message < messages; message++) {
        const struct ub_datagram *datagram = &config->datagrams[turn];
        struct iovec *vector = &box->vectors[box->first_slot + message];
        uint32_t rest = offer->packets - message * box->segments;
        uint32_t packets = rest < box->segments ? rest : box->segments;
        vector->iov_len =
            (size_t)(packets - 1) * datagram->size_bytes + datagram[box->last].size_bytes;
        if (config->ids != NULL) {
            memcpy(vector->iov_base, datagram->bytes, datagram->size_bytes);
            ub_ids_put(config, offer->flow, message, vector->iov_base,
                       config->start_ns + due.since_start_ns);
            ub_due_next(&due);
        } else if (datagram->bytes != NULL) {
            vector->iov_base = (void *)datagram->bytes;
        }
        turn = turn + 1 < box->turns ? turn + 1 : 0;
    }
}

static void put_headers(struct ub_outbox *box, const struct ub_offer *offer, uint32_t messages) {
    const struct ub_send_config *config = box->config;
    struct ub_header header = {config->tag, config->flows[offer->flow],
                               config->sequences[offer->flow]};
    struct ub_due due = offer->due;
    uint64_t epoch_to_start_ns = config->start_ns - config->epoch_ns;
    size_t size_bytes = config->datagrams->size_bytes; /* of all but the last of a message */
    uint64_t end = header.sequence + offer->packets;
    for (uint32_t message = 0; message < messages; message++) {
        uint8_t *payload = box->payloads + (box->first_slot + message) * box->stride_bytes;
        uint64_t rest = end - header.sequence;
        uint64_t stop = header.sequence + (rest < box->segments ? rest : box->segments);
        for (; header.sequence < stop; header.sequence++) {
            ub_header_put(payload, &header, epoch_to_start_ns + due.since_start_ns);
            ub_due_next(&due);
            payload += size_bytes;
        }
    }
}

uint32_t ub_outbox_fill(struct ub_outbox *box, const struct ub_offer *offer) {
    uint32_t messages = (offer->packets + box->segments - 1) / box->segments;
    if (box->varies)
        shape(box, offer, messages);
    if (box->headers)
        put_headers(box, offer, messages);
    return messages;
}
