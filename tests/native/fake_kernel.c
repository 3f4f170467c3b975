/*
 * A kernel that does as it is told: linked in by -Wl,--wrap for sendmmsg and aligned_alloc.
 *
 * sendmmsg plays a script, a step a call, and logs what was offered; when the script is over it
 * takes all. aligned_alloc fails after so many allocations.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { STEPS_MAX = 64, LOG_MAX = 4096 };

struct fake_step {
    int32_t takes; /* messages, or -errno */
    uint32_t delay_ms;
};
struct fake_call {
    int32_t socket;
    uint32_t offered;
    uint64_t first_sequence;
};

static struct fake_step steps[STEPS_MAX];
static uint32_t step_count;
static int repeats_last;
static struct fake_call calls[LOG_MAX];
static uint32_t call_count;

void fake_script(const struct fake_step *script, uint32_t count, int repeat_last) {
    memcpy(steps, script, count * sizeof *steps);
    step_count = count;
    repeats_last = repeat_last;
    call_count = 0;
}

uint32_t fake_calls(struct fake_call *to) {
    memcpy(to, calls, sizeof calls);
    return call_count;
}

int __wrap_sendmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags);
int __wrap_sendmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags) {
    (void)flags;
    const uint8_t *header = messages[0].msg_hdr.msg_iov->iov_base;
    uint64_t sequence = 0;
    for (int at = 6; at < 12; at++)
        sequence = sequence << 8 | header[at];
    uint32_t call = call_count;
    if (call < LOG_MAX)
        calls[call_count++] = (struct fake_call){socket, count, sequence};
    if (call >= step_count && !repeats_last)
        return (int)count;
    struct fake_step step = steps[call < step_count ? call : step_count - 1];
    struct timespec delay = {.tv_nsec = step.delay_ms * 1000000L};
    if (step.delay_ms)
        nanosleep(&delay, NULL);
    if (step.takes < 0) {
        errno = -step.takes;
        return -1;
    }
    return step.takes < (int)count ? step.takes : (int)count;
}

static uint32_t allocations_left = UINT32_MAX;

void fake_memory(uint32_t allocations) {
    allocations_left = allocations;
}

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    if (allocations_left == 0)
        return NULL;
    if (allocations_left != UINT32_MAX)
        allocations_left--;
    return __real_aligned_alloc(alignment, bytes);
}
