/*
 * A way of waiting: epoll(7), level-triggered, then one call on each socket that is ready.
 *
 * Owns the epoll instance of one loop.
 */
#include "receiving.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { SLICE_MS = 50 };

static void release(struct ub_turns *turns) {
    if (turns->epoll >= 0)
        close(turns->epoll);
    free(turns->events);
}

static int prepare(struct ub_turns *turns) {
    turns->events = ub_allocate(turns->socket_count * sizeof(struct epoll_event));
    if (turns->events == NULL)
        return -ENOMEM;
    turns->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (turns->epoll < 0)
        return -errno;
    for (uint32_t index = 0; index < turns->socket_count; index++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = turns->sockets[index]};
        if (epoll_ctl(turns->epoll, EPOLL_CTL_ADD, turns->sockets[index], &event) < 0)
            return -errno;
    }
    return 0;
}

static int next(struct ub_turns *turns) {
    struct epoll_event *events = turns->events;
    if (turns->next == turns->ready) {
        int ready = epoll_wait(turns->epoll, events, (int)turns->socket_count, SLICE_MS);
        ub_add(&turns->stats->wait_calls, 1);
        turns->next = 0;
        turns->ready = ready > 0 ? (uint32_t)ready : 0; /* a signal is no socket */
        if (turns->ready == 0)
            return -1;
    }
    return events[turns->next++].data.fd;
}

const struct ub_wait_way ub_wait_epoll = {.prepare = prepare,
                                          .next = next,
                                          .release = release,
                                          .flags = MSG_DONTWAIT,
                                          .sockets_max = UB_SOCKETS_MAX};
