/*
 * The ways of waiting: in the receiving call, by epoll(7), by spinning, by naps, or adaptively.
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

/* ---- nap: as spin, with a sleep after every round that filled no batch ----------------------- */

static int nap_next(struct ub_wait_state *wait) {
    if (wait->until_ns != 0) {
        uint64_t now = ub_now_ns();
        if (now < wait->until_ns) {
            ub_sleep_slice(now, wait->until_ns);
            return -1;
        }
        wait->span_ns += now - wait->until_ns; /* as if it had not overslept */
        wait->until_ns = 0;
    }
    return spin_next(wait);
}

static void nap(struct ub_wait_state *wait, uint64_t nap_ns) {
    wait->until_ns = ub_now_ns() + nap_ns;
    ub_add(&wait->stats->wait_calls, 1);
}

/* Whether this call completed a round in which no batch was full. */
static int drained(struct ub_wait_state *wait, uint32_t messages) {
    wait->full += messages == wait->batch;
    if (wait->next != wait->config->socket_count)
        return 0;
    uint32_t full = wait->full;
    wait->full = 0;
    return full == 0;
}

static void nap_received(struct ub_wait_state *wait, uint32_t messages) {
    if (drained(wait, messages))
        nap(wait, wait->config->nap_ns);
}

/* ---- auto: naps while each yields several messages, else a wait for each --------------------- */

enum {
    AUTO_PAYS = 4,    /* messages, whose wake-ups would cost more than the nap; naps go on while
                         they bring half of them, so that a small change of the rate does not end
                         them; at a rate at which a nap brings two or three, the one that tries
                         whether it pays begins them */
    AUTO_CALLS = 512, /* that brought messages, until a nap tries whether it pays: it delays too few
                         datagrams to move their 99th percentile */
    AUTO_CALM_NS = 100000000, /* in which the time between messages more than doubles again */
};

/* One socket's call blocks for less than epoll costs, and a ring's hears all sockets. */
static int waits_in_call(const struct ub_wait_state *wait) {
    return (wait->waits & UB_WAIT_BIT(UB_WAIT_EPOLL)) == 0 ||
           (wait->config->socket_count == 1 && (wait->waits & UB_WAIT_BIT(UB_WAIT_BLOCK)) != 0);
}

static void auto_begin(struct ub_wait_state *wait, uint32_t naps) {
    wait->naps = naps;
    wait->brought = wait->next = wait->ready = 0;
    wait->flags = naps || !waits_in_call(wait) ? MSG_DONTWAIT : 0;
}

static int auto_prepare(struct ub_wait_state *wait) {
    auto_begin(wait, 0);
    return waits_in_call(wait) ? 0 : epoll_prepare(wait);
}

static int auto_next(struct ub_wait_state *wait) {
    if (wait->naps)
        return nap_next(wait);
    return waits_in_call(wait) ? block_next(wait) : epoll_next(wait);
}

/*
 * How far apart messages were where they came fastest, lately: a nap in which nap_messages come at
 * that rate is safe. A time that a nap overslept is left out, so that naps become shorter where the
 * CPU is shared. What breaks a silence meets no nap but a short one, since long ones end in it: of
 * its rate nothing is known at first. Returns whether a long nap would pay.
 */
static int note_rate(struct ub_wait_state *wait, uint32_t messages) {
    const struct ub_receive_config *config = wait->config;
    uint64_t now = ub_now_ns(), quiet_ns = now - wait->heard_ns;
    wait->heard_ns = now;
    if (quiet_ns >= config->nap_most_ns * (wait->naps ? 2 : 1)) {
        wait->breaks_silence = 1;
        wait->broken_ns = wait->span_ns = now;
        wait->in_span = 0;
    }
    wait->in_span += messages;
    uint64_t took_ns = now - wait->span_ns;
    if (took_ns < config->nap_most_ns && wait->in_span <= config->nap_messages)
        return 0;
    uint64_t apart_ns = took_ns / wait->in_span;
    uint64_t calmer_ns = wait->apart_ns + wait->apart_ns / (AUTO_CALM_NS / (took_ns + 1) + 1) + 1;
    wait->apart_ns = apart_ns < calmer_ns || wait->apart_ns == 0 ? apart_ns : calmer_ns;
    if (now - wait->broken_ns >= config->nap_most_ns)
        wait->breaks_silence = 0;
    wait->span_ns = now;
    wait->in_span = 0;
    return !wait->breaks_silence && wait->apart_ns * AUTO_PAYS <= config->nap_most_ns;
}

static uint64_t safe_nap_ns(const struct ub_wait_state *wait) {
    const struct ub_receive_config *config = wait->config;
    uint64_t safe_ns = wait->apart_ns * config->nap_messages;
    if (wait->breaks_silence || safe_ns < config->nap_ns)
        return config->nap_ns;
    return safe_ns < config->nap_most_ns ? safe_ns : config->nap_most_ns;
}

/* Begins to nap where that pays, and ends it where it does not, nor would a longer nap. */
static void auto_received(struct ub_wait_state *wait, uint32_t messages) {
    int pays = 0;
    if (messages != 0 && wait->config->nap_most_ns != 0)
        pays = note_rate(wait, messages);
    uint32_t naps = wait->naps;
    wait->brought += naps ? messages : messages != 0;
    pays |= messages >= AUTO_PAYS || wait->brought >= AUTO_CALLS;
    if (naps ? !drained(wait, messages) : !pays)
        return;
    uint64_t safe_ns = safe_nap_ns(wait);
    if (naps && wait->brought < AUTO_PAYS / 2 && safe_ns <= wait->nap_ns) {
        auto_begin(wait, 0);
        return;
    }
    auto_begin(wait, 1);
    wait->nap_ns = safe_ns;
    nap(wait, safe_ns);
}

/* A new way of waiting is a row here, a constant of enum ub_wait, and a row of WAITS in
 * udpbench/ways.py; ways of receiving say whether they go with it, here and there. */
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
    [UB_WAIT_AUTO] = {.prepare = auto_prepare,
                      .next = auto_next,
                      .received = auto_received,
                      .release = epoll_release,
                      .sockets_max = UB_SOCKETS_MAX},
};

const struct ub_wait_way *ub_wait_way_of(uint32_t wait) {
    return wait < sizeof ways / sizeof *ways ? &ways[wait] : NULL;
}
