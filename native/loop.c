/*
 * What every loop rests on: sleeping, two clocks at one time, memory, and sockets whose calls
 * return.
 *
 * Must never know what a loop does.
 */
#include "loop.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

void ub_sleep_slice(uint64_t now_ns, uint64_t until_ns) {
    if (until_ns <= now_ns)
        return;
    if (until_ns - now_ns > UB_SLICE_NS)
        until_ns = now_ns + UB_SLICE_NS;
    struct timespec at = {.tv_sec = (time_t)(until_ns / UB_SECOND_NS),
                          .tv_nsec = (long)(until_ns % UB_SECOND_NS)};
    /* A signal ends it early, which costs one more check of stop. */
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

uint64_t ub_realtime_ahead_ns(uint64_t now_ns) {
    enum { TRIES = 5, NEAR_NS = 1000 };
    uint64_t least = UINT64_MAX, ahead = 0;
    for (int try = 0; try < TRIES && least > NEAR_NS; try++) {
        uint64_t real_ns = ub_clock_ns(CLOCK_REALTIME), after_ns = ub_now_ns();
        uint64_t apart = after_ns - now_ns;
        if (apart < least) {
            least = apart;
            ahead = real_ns - (now_ns + apart / 2);
        }
        now_ns = after_ns;
    }
    return ahead;
}

void *ub_allocate(size_t bytes) {
    void *memory = aligned_alloc(UB_CACHE_LINE_BYTES, ub_lines_bytes(bytes));
    if (memory != NULL)
        memset(memory, 0, ub_lines_bytes(bytes));
    return memory;
}

int ub_sockets_return(const int32_t *sockets, uint32_t count, int option) {
    for (uint32_t index = 0; index < count; index++) {
        struct timeval timeout;
        socklen_t bytes = sizeof timeout;
        if (getsockopt(sockets[index], SOL_SOCKET, option, &timeout, &bytes) < 0 ||
            (timeout.tv_sec == 0 && timeout.tv_usec == 0))
            return 0;
    }
    return 1;
}
