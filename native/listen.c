/*
 * Waiting for what comes back on a sender's sockets: by epoll, until all is quiet.
 */
#include "listen.h"

#include <sys/epoll.h>
#include <unistd.h>

enum { LOOK_MS = 20, READY_MAX = 64 };

static int add_sockets(const struct ub_listener *listener, int epoll) {
    for (uint32_t index = 0; index < listener->socket_count; index++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener->sockets[index], &event) < 0)
            return -errno;
    }
    return 0;
}

static void listen_until_quiet(const struct ub_listener *listener, int epoll) {
    struct epoll_event events[READY_MAX];
    uint64_t quiet_since_ns = 0, ended_ns = 0;
    while (!ub_stopped(listener->control)) {
        int ended = ub_stopped(listener->ended);
        int ready = epoll_wait(epoll, events, READY_MAX, LOOK_MS);
        int heard = 0;
        for (int index = 0; index < ready; index++)
            heard |= listener->read(listener->subject, events[index].data.u32);
        uint64_t now = ub_now_ns();
        if (ended && ended_ns == 0)
            ended_ns = now;
        if (!ended || heard || quiet_since_ns == 0)
            quiet_since_ns = now;
        if (!ended)
            continue;
        if (listener->complete != NULL && listener->complete(listener->subject))
            return;
        if (now - quiet_since_ns >= listener->quiet_ns || now - ended_ns >= listener->longest_ns)
            return;
    }
}

const char *ub_listener_check(const struct ub_listener *listener) {
    if (listener->control == NULL)
        return "control: not NULL";
    if (listener->ended == NULL)
        return "ended: not NULL";
    if (listener->sockets == NULL)
        return "sockets: not NULL";
    if (listener->socket_count == 0)
        return "socket_count: at least 1";
    return NULL;
}

int ub_listen(const struct ub_listener *listener) {
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        return -errno;
    int error = add_sockets(listener, epoll);
    if (error == 0)
        listen_until_quiet(listener, epoll);
    close(epoll);
    return error;
}
