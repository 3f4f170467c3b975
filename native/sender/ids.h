/*
 * The ids that match an answer to its datagram.
 *
 * Owns which id a datagram has, and which of them await an answer. Must never send or read.
 */
#ifndef UB_IDS_H
#define UB_IDS_H

#include "loop.h"

enum { UB_ID_BYTES = 2 };

/* Returns the field of a config that is refused; NULL: none. */
const char *ub_ids_check(const struct ub_send_config *config);

/* Returns how many of a flow's next `packets` datagrams can have an id now. Before it returns 0 it
 * sleeps until the next id is free or the loop ends, at most one slice. */
uint32_t ub_ids_ready(const struct ub_send_config *config, struct ub_send_stats *stats,
                      uint32_t flow, uint32_t packets, uint64_t now_ns);

/* Writes its id into `datagram`, which comes `number` after the flow's next one and was due at
 * `due_ns`. */
void ub_ids_put(const struct ub_send_config *config, uint32_t flow, uint32_t number,
                uint8_t *datagram, uint64_t due_ns);

/* Notes after a call that of `offered` datagrams with an id the first `sent` went; the ids of the
 * others are used next. */
void ub_ids_sent(const struct ub_send_config *config, uint32_t flow, uint32_t offered,
                 uint32_t sent);

/* Returns when the datagram was due that an answer with this id belongs to, and lets it await no
 * other; 0: none awaits it. */
uint64_t ub_ids_take(struct ub_ids *ids, const uint8_t *id);

#endif
