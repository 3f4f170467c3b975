/*
 * A way of waiting: not at all. Calls do not block and take the sockets in turn.
 */
#include "receiving.h"

int ub_turns_next(struct ub_turns *turns) {
    if (turns->next == turns->socket_count)
        turns->next = 0;
    return turns->sockets[turns->next++];
}

const struct ub_wait_way ub_wait_spin = {
    .next = ub_turns_next, .flags = MSG_DONTWAIT, .sockets_max = UB_SOCKETS_MAX};
