/*
 * A datagram of a run: its size, its header as bytes, and the pattern behind it.
 */
#include "datagram.h"

_Static_assert(UB_HEADER_BYTES == 4 + 2 + 6 + 6, "tag, flow, sequence, time");

void ub_header_write(uint8_t *to, uint32_t tag, uint16_t flow, uint64_t sequence,
                     uint64_t time_ns) {
    ub_header_put(to, &(struct ub_header){tag, flow, sequence}, time_ns);
}

int ub_datagrams_valid(const struct ub_datagram *datagrams, uint32_t count, uint32_t least_bytes) {
    for (uint32_t index = 0; datagrams != NULL && index < count; index++)
        if (datagrams[index].size_bytes < least_bytes ||
            datagrams[index].size_bytes > UB_MESSAGE_BYTES_MAX)
            return 0;
    return datagrams != NULL && count != 0;
}

uint32_t ub_longest_bytes(const struct ub_datagram *datagrams, uint32_t count) {
    uint32_t longest_bytes = 0;
    for (uint32_t index = 0; index < count; index++)
        if (datagrams[index].size_bytes > longest_bytes)
            longest_bytes = datagrams[index].size_bytes;
    return longest_bytes;
}

/* The high bits of the position are included, so that a moved block of bytes is detected. */
void ub_pattern_write(uint8_t *to, uint32_t bytes) {
    for (uint32_t at = 0; at < bytes; at++)
        to[at] = (uint8_t)(at ^ at >> 8);
}
