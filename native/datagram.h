/*
 * A datagram of a run: its header, and the pattern behind it.
 *
 * Owns the layout of both in the payload. Must never decide what a datagram counts as.
 */
#ifndef UB_DATAGRAM_H
#define UB_DATAGRAM_H

#include "loop.h"

#include <endian.h>
#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103 /* include/uapi/linux/udp.h, since Linux 4.18 */
#endif
#ifndef UDP_GRO
#define UDP_GRO 104 /* the same, since Linux 5.0 */
#endif

#define UB_SEQUENCE_MASK ((UINT64_C(1) << 48) - 1)

struct ub_header {
    uint32_t tag;
    uint16_t flow;
    uint64_t sequence;
};

/* Whether there are any, each of `least_bytes` to UB_MESSAGE_BYTES_MAX. */
int ub_datagrams_valid(const struct ub_datagram *datagrams, uint32_t count, uint32_t least_bytes);

uint32_t ub_longest_bytes(const struct ub_datagram *datagrams, uint32_t count);

/* Writing and reading are inline: 0.8 ns to write a header, against 2.3 ns by a call. Flow and
 * sequence lie side by side and are read as one 64-bit word: a word put together from smaller
 * stores is read back before they have left the store buffer, and the CPU stalls. Measured on
 * x86-64, one flow in order, each datagram by itself: 6.5 ns to account it, against 16 ns with the
 * six bytes copied apart. */
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

static inline uint32_t ub_header_tag(const uint8_t *from) {
    uint32_t tag_wire;
    memcpy(&tag_wire, from, 4);
    return be32toh(tag_wire);
}

/* Flow and sequence number. */
static inline uint64_t ub_header_number(const uint8_t *from) {
    uint64_t number_wire;
    memcpy(&number_wire, from + 4, 8);
    return be64toh(number_wire);
}

static inline void ub_header_read(const uint8_t *from, struct ub_header *header) {
    uint64_t number = ub_header_number(from);
    header->tag = ub_header_tag(from);
    header->flow = (uint16_t)(number >> 48);
    header->sequence = number & UB_SEQUENCE_MASK;
}

/* Separate, because most readers do not need the time. */
static inline uint64_t ub_header_time_ns(const uint8_t *from) {
    uint64_t last_wire; /* two bytes of the sequence number, then the time */
    memcpy(&last_wire, from + 10, 8);
    return be64toh(last_wire) & UB_SEQUENCE_MASK;
}

/* A difference of two 48-bit numbers as a signed one (serial arithmetic, RFC 1982): the shift makes
 * bit 47 the sign. */
static inline int64_t ub_signed48(uint64_t difference) {
    return (int64_t)(difference << 16) / 65536;
}

#endif
