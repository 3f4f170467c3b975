/*
 * The ways of waiting: in the receiving call, by epoll(7), by spinning, by naps.
 *
 * Owns the table of all ways, and the epoll instance of a loop. Must never receive.
 */
#include "wait.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- block: in the receiving call itself, for one socket ------------------------------------- */

static int block_next(struct ub_wait_state *wait) {
    return wait->config->sockets[0];
}

/* ---- epoll: level-triggered, then one call on each socket that is ready ---------------------- */

static void epoll_release(struct ub_wait_state *wait) {
    if (wait->epoll >= 0)
        close(wait->epoll);
    free(wait->events);
}

static int epoll_prepare(struct ub_wait_state *wait) {
    const struct ub_receive_config *config = wait->config;
    wait->events = ub_allocate(config->socket_count * sizeof(struct epoll_event));
    if (wait->events == NULL)
        return -ENOMEM;
    wait->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (wait->epoll < 0)
        return -errno;
    for (uint32_t index = 0; index < config->socket_count; index++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = config->sockets[index]};
        if (epoll_ctl(wait->epoll, EPOLL_CTL_ADD, config->sockets[index], &event) < 0)
            return -errno;
    }
    return 0;
}

static int epoll_next(struct ub_wait_state *wait) {
    struct epoll_event *events = wait->events;
    if (wait->next == wait->ready) {
        int ready = epoll_wait(wait->epoll, events, (int)wait->config->socket_count, UB_SLICE_MS);
        ub_add(&wait->stats->wait_calls, 1);
        wait->next = 0;
        wait->ready = ready > 0 ? (uint32_t)ready : 0; /* below 0: a signal */
        if (wait->ready == 0)
            return -1;
    }
    return events[wait->next++].data.fd;
}

/* ---- spin: calls that do not block, on the sockets in turn ----------------------------------- */

static int spin_next(struct ub_wait_state *wait) {
    if (wait->next == wait->config->socket_count)
        wait->next = 0;
    return wait->config->sockets[wait->next++];
}

/* ---- nap: the same, and a sleep after every round that filled no batch ----------------------- */

static int nap_next(struct ub_wait_state *wait) {
    if (wait->until_ns != 0) {
        uint64_t now = ub_now_ns();
        if (now < wait->until_ns) {
            ub_sleep_slice(now, wait->until_ns);
            return -1;
        }
        wait->until_ns = 0;
    }
    return spin_next(wait);
}

static void nap_received(struct ub_wait_state *wait, uint32_t messages) {
    wait->full += messages == wait->batch;
    if (wait->next != wait->config->socket_count)
        return;
    if (wait->full == 0) {
        wait->until_ns = ub_now_ns() + wait->config->nap_ns;
        ub_add(&wait->stats->wait_calls, 1);
    }
    wait->full = 0;
}

/* A new way of waiting is a row here and a constant of enum ub_wait; ways of receiving say whether
 * they go with it. */
static const struct ub_wait_way ways[] = {
    [UB_WAIT_BLOCK] = {.next = block_next, .sockets_max = 1},
    [UB_WAIT_EPOLL] = {.prepare = epoll_prepare,
                       .next = epoll_next,
                       .release = epoll_release,
                       .flags = MSG_DONTWAIT,
                       .sockets_max = UB_SOCKETS_MAX},
    [UB_WAIT_SPIN] = {.next = spin_next, .flags = MSG_DONTWAIT, .sockets_max = UB_SOCKETS_MAX},
    [UB_WAIT_NAP] = {.next = nap_next,
                     .received = nap_received,
                     .flags = MSG_DONTWAIT,
                     .sockets_max = UB_SOCKETS_MAX},
};

const struct ub_wait_way *ub_wait_way_of(uint32_t wait) {
    return wait < sizeof ways / sizeof *ways ? &ways[wait] : NULL;
}
