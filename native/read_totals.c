/*
 * Two ways of reading that look at no payload: it is copied, or not even that.
 *
 * Owns what lengths alone can tell. Must never claim to know whose a datagram is.
 */
#include "receiving.h"

static inline void note(struct ub_tally *tally, uint32_t length, uint32_t cut) {
    const struct ub_receive_config *config = tally->config;
    tally->read++;
    if (cut)
        tally->truncated++;
    else if (length == config->size_bytes)
        tally->arrivals.received++;
    else if (length == config->tail_bytes && length != 0)
        tally->arrivals.received++, tally->arrivals.received_tails++;
    else
        tally->corrupt++;
}

static inline void note_copied(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                               uint32_t there) {
    uint64_t before = tally->arrivals.received;
    note(tally, length, there < length);
    if (tally->config->log != NULL && tally->arrivals.received != before)
        ub_note_log(tally, bytes, length);
}

static inline void note_length(struct ub_tally *tally, const uint8_t *bytes, uint32_t length,
                               uint32_t there) {
    (void)bytes;
    (void)there;
    note(tally, length, 0);
}

static void account_copied(const struct ub_inbox *inbox, uint32_t messages,
                           struct ub_tally *tally) {
    ub_each_datagram(inbox, messages, tally, note_copied);
}

static void account_lengths(const struct ub_inbox *inbox, uint32_t messages,
                            struct ub_tally *tally) {
    ub_each_datagram(inbox, messages, tally, note_length);
}

const struct ub_read_way ub_read_copy = {account_copied, .copies = 1};
const struct ub_read_way ub_read_none = {account_lengths, .copies = 0};
