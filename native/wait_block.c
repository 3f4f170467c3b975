/*
 * A way of waiting: in the receiving call itself, for one socket.
 */
#include "receiving.h"

static int next(struct ub_turns *turns) {
    return turns->sockets[0];
}

const struct ub_wait_way ub_wait_block = {.next = next, .sockets_max = 1};
