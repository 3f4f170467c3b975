/*
 * The messages that a sender offers: buffers, payloads, headers and control messages.
 */
#include "outbox.h"

#include "datagram.h"
#include "ids.h"

#include <stdlib.h>

enum { CONTROL_BYTES = CMSG_SPACE(sizeof(uint16_t)) };

void ub_outbox_release(struct ub_outbox *box) {
    free(box->messages);
    free(box->vectors);
    free(box->controls);
    free(box->payloads);
}

/* Payload bytes of a message with so many datagrams. */
static size_t message_bytes(const struct ub_outbox *box, const struct ub_send_config *config,
                            uint32_t packets) {
    return (size_t)(packets - 1) * config->size_bytes + box->tail_bytes;
}

static void prepare_control(const struct ub_send_config *config, struct msghdr *message,
                            uint8_t *control) {
    uint16_t segment_bytes = (uint16_t)config->size_bytes;
    message->msg_control = control;
    message->msg_controllen = CONTROL_BYTES;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof segment_bytes);
    memcpy(CMSG_DATA(header), &segment_bytes, sizeof segment_bytes);
}

static void prepare_slot(struct ub_outbox *box, const struct ub_send_config *config,
                         uint32_t slot) {
    uint8_t *payload = box->payloads + slot * box->stride_bytes;
    for (uint32_t packet = 0; packet < box->segments; packet++)
        ub_pattern_write(payload + (size_t)packet * config->size_bytes,
                         packet + 1 < box->segments ? config->size_bytes : box->tail_bytes);
    struct msghdr *message = &box->messages[slot].msg_hdr;
    box->vectors[slot] = (struct iovec){payload, message_bytes(box, config, box->segments)};
    message->msg_iov = &box->vectors[slot];
    message->msg_iovlen = 1;
    if (box->controls != NULL)
        prepare_control(config, message, box->controls + (size_t)slot * CONTROL_BYTES);
}

int ub_outbox_prepare(struct ub_outbox *box, const struct ub_send_config *config,
                      struct ub_send_stats *stats, uint32_t slots) {
    (void)stats;
    uint32_t segments = config->gso_segments > 1 ? config->gso_segments : 1;
    *box = (struct ub_outbox){.segments = segments, .shortened = UINT32_MAX};
    box->tail_bytes = config->tail_bytes != 0 ? config->tail_bytes : config->size_bytes;
    /* At least one line, even for datagrams without payload. */
    box->stride_bytes = ub_lines_bytes((size_t)segments * config->size_bytes + 1);
    box->messages = ub_allocate(slots * sizeof *box->messages);
    box->vectors = ub_allocate(slots * sizeof *box->vectors);
    box->payloads = ub_allocate(slots * box->stride_bytes);
    if (segments > 1)
        box->controls = ub_allocate((size_t)slots * CONTROL_BYTES);
    if (box->messages == NULL || box->vectors == NULL || box->payloads == NULL ||
        (segments > 1 && box->controls == NULL))
        return -ENOMEM;
    for (uint32_t slot = 0; slot < slots; slot++)
        prepare_slot(box, config, slot);
    return 0;
}

/* The user's own datagrams, in turn by sequence number: a message points at its bytes, or with an
 * id at a copy of them. */
static uint32_t fill_payloads(struct ub_outbox *box, const struct ub_send_config *config,
                              const struct ub_offer *offer) {
    uint32_t turn = (uint32_t)(config->sequences[offer->flow] % config->payload_count);
    struct ub_due due = offer->due;
    for (uint32_t message = 0; message < offer->packets; message++) {
        const struct ub_payload *payload = &config->payloads[turn];
        uint32_t slot = offer->first_slot + message;
        box->vectors[slot] = (struct iovec){payload->bytes, payload->size_bytes};
        if (config->ids != NULL) {
            uint8_t *copy = box->payloads + slot * box->stride_bytes;
            memcpy(copy, payload->bytes, payload->size_bytes);
            ub_ids_put(config, offer->flow, message, copy, config->start_ns + due.since_start_ns);
            box->vectors[slot].iov_base = copy;
            ub_due_next(&due);
        }
        turn = turn + 1 < config->payload_count ? turn + 1 : 0;
    }
    return offer->packets;
}

uint32_t ub_outbox_fill(struct ub_outbox *box, const struct ub_send_config *config,
                        const struct ub_offer *offer) {
    if (config->payload_count != 0)
        return fill_payloads(box, config, offer);
    uint32_t packets = offer->packets, first = offer->first_slot;
    uint32_t messages = (packets + box->segments - 1) / box->segments;
    if (box->shortened != UINT32_MAX)
        box->vectors[box->shortened].iov_len = message_bytes(box, config, box->segments);
    box->shortened = UINT32_MAX;
    if (packets % box->segments != 0) {
        box->shortened = first + messages - 1;
        box->vectors[box->shortened].iov_len = message_bytes(box, config, packets % box->segments);
    }
    if (config->size_bytes < UB_HEADER_BYTES)
        return messages;
    struct ub_header header = {config->tag, config->flows[offer->flow],
                               config->sequences[offer->flow]};
    struct ub_due due = offer->due;
    uint64_t end = header.sequence + packets;
    for (uint32_t message = 0; message < messages; message++) {
        uint8_t *payload = box->payloads + (first + message) * box->stride_bytes;
        uint64_t rest = end - header.sequence;
        uint64_t stop = header.sequence + (rest < box->segments ? rest : box->segments);
        for (; header.sequence < stop; header.sequence++, payload += config->size_bytes) {
            ub_header_put(payload, &header, offer->epoch_to_start_ns + due.since_start_ns);
            ub_due_next(&due);
        }
    }
    return messages;
}
