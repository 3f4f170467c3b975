/*
 * The ids that match an answer to its datagram.
 *
 * Owns which id a datagram has, and which of them await an answer. Must never send or read.
 */
#ifndef UB_IDS_H
#define UB_IDS_H

#include "loop.h"

enum { UB_ID_BYTES = 2 };

/* The field of a config that is refused; NULL: none. */
const char *ub_ids_check(const struct ub_send_config *config);

/* How many of a flow's next datagrams can have an id now, of so many; 0 after a sleep until the
 * next id is free, or the end, at most one slice. */
uint32_t ub_ids_ready(const struct ub_send_config *config, struct ub_send_stats *stats,
                      uint32_t flow, uint32_t packets, uint64_t now_ns);

/* Writes the id of a flow's next datagram but so many into it; it was due at a time. */
void ub_ids_put(const struct ub_send_config *config, uint32_t flow, uint32_t number,
                uint8_t *datagram, uint64_t due_ns);

/* After a call: how many of the datagrams with an id were sent; the others' are the next again. */
void ub_ids_sent(const struct ub_send_config *config, uint32_t flow, uint32_t offered,
                 uint32_t sent);

/* When the datagram was due that an answer with this id belongs to, once; 0: none awaits it. */
uint64_t ub_ids_take(struct ub_ids *ids, const uint8_t *id);

#endif
