/*
 * A way of waiting: a nap by the clock after every round over the sockets that filled no batch.
 */
#include "receiving.h"

static int next(struct ub_turns *turns) {
    if (turns->until_ns != 0) {
        uint64_t now = ub_now_ns();
        if (now < turns->until_ns) {
            ub_sleep_slice(now, turns->until_ns);
            return -1;
        }
        turns->until_ns = 0;
    }
    return ub_turns_next(turns);
}

static void told(struct ub_turns *turns, uint32_t messages) {
    turns->full += messages == turns->batch;
    if (turns->next != turns->socket_count)
        return;
    if (turns->full == 0) {
        turns->until_ns = ub_now_ns() + turns->config->nap_ns;
        ub_add(&turns->stats->wait_calls, 1);
    }
    turns->full = 0;
}

const struct ub_wait_way ub_wait_nap = {
    .next = next, .told = told, .flags = MSG_DONTWAIT, .sockets_max = UB_SOCKETS_MAX};
