/*
 * Waiting for packets that return to a sender's sockets, beside the sending loop.
 *
 * Owns when a listener polls and when it ends. Must never read a socket itself.
 */
#ifndef UB_LISTEN_H
#define UB_LISTEN_H

#include "loop.h"

struct ub_listener {
    const int32_t *sockets; /* socket_count sockets; a sending loop may use them, too */
    uint32_t socket_count;
    const struct ub_control *control; /* stop: it leaves at once */
    const struct ub_control *ended;   /* stop: from now on it leaves after a quiet time */
    uint64_t quiet_ns;                /* without anything of ours */
    uint64_t longest_ns;              /* and after this, even if more comes */
    void *subject;
    /* Reads what is queued in a socket, up to a limit; returns whether any of it was ours. */
    int (*read)(void *subject, uint32_t index);
    /* Whether nothing more can arrive; NULL: unknown. */
    int (*complete)(void *subject);
};

/* "field: what it may be" of a listener that is refused; NULL: it is not. */
const char *ub_listener_check(const struct ub_listener *listener);
/* 0, or -errno if the sockets cannot be waited for. */
int ub_listen(const struct ub_listener *listener);

#endif
