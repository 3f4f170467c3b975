/*
 * Ids of 16 bits, as protocols have them: each flow uses its own in turn, so that the next one is
 * the one that was not used for longest.
 */
#include "ids.h"

#include <endian.h>

_Static_assert(UB_IDS == 1 << 8 * UB_ID_BYTES, "as many as the bytes can say");

/* The word of a flow's id `number` after its next one. Both threads write it, always whole. */
static uint64_t *word_of(const struct ub_send_config *config, uint32_t flow, uint64_t number) {
    struct ub_ids *ids = config->ids[flow];
    return &ids->used[(ids->next + number) % UB_IDS];
}

/* When the flow's id `number` after its next one is free; 0: never used. */
static uint64_t free_ns(const struct ub_send_config *config, uint32_t flow, uint64_t number) {
    uint64_t used = __atomic_load_n(word_of(config, flow, number), __ATOMIC_RELAXED);
    return used == 0 ? 0 : (used >> 1) + config->id_ns;
}

const char *ub_ids_check(const struct ub_send_config *config) {
    if (config->ids == NULL)
        return NULL;
    if (config->datagrams->bytes == NULL)
        return "ids: NULL without datagrams of the user's";
    for (uint32_t number = 0; number < config->datagram_count; number++)
        if (config->datagrams[number].size_bytes < (uint64_t)config->id_at + UB_ID_BYTES)
            return "id_at: with both bytes within each datagram";
    return NULL;
}

uint32_t ub_ids_ready(const struct ub_send_config *config, struct ub_send_stats *stats,
                      uint32_t flow, uint32_t packets, uint64_t now_ns) {
    while (packets > 0 && free_ns(config, flow, packets - 1) > now_ns)
        packets--;
    if (packets == 0) {
        uint64_t until_ns = free_ns(config, flow, 0);
        ub_add(&stats->id_waits, 1);
        ub_sleep_slice(now_ns, until_ns < config->end_ns ? until_ns : config->end_ns);
    }
    return packets;
}

void ub_ids_put(const struct ub_send_config *config, uint32_t flow, uint32_t number,
                uint8_t *datagram, uint64_t due_ns) {
    uint16_t id = htobe16((uint16_t)(config->ids[flow]->next + number));
    memcpy(datagram + config->id_at, &id, sizeof id);
    ub_set(word_of(config, flow, number), due_ns << 1 | 1);
}

void ub_ids_sent(const struct ub_send_config *config, uint32_t flow, uint32_t offered,
                 uint32_t sent) {
    for (uint32_t number = sent; number < offered; number++)
        ub_set(word_of(config, flow, number), 0);
    config->ids[flow]->next += sent;
}

uint64_t ub_ids_take(struct ub_ids *ids, const uint8_t *id) {
    uint16_t wire;
    memcpy(&wire, id, sizeof wire);
    uint64_t used = __atomic_fetch_and(&ids->used[be16toh(wire)], ~UINT64_C(1), __ATOMIC_RELAXED);
    return used & 1 ? used >> 1 : 0;
}
