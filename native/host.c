/*
 * System calls without a function in the C library, by this architecture's numbers.
 *
 * Each returns the kernel's result, or -errno. Must never interpret its arguments.
 */
#include "loop.h"

#include <sys/syscall.h>
#include <unistd.h>

enum { IOPRIO_WHO_PROCESS = 1, CALLING_THREAD = 0 }; /* include/uapi/linux/ioprio.h */

static int result_of(long result) {
    return result < 0 ? -errno : (int)result;
}

int ub_bpf(int32_t command, void *attributes, uint32_t bytes) {
    return result_of(syscall(SYS_bpf, command, attributes, bytes));
}

int ub_perf_event_open(void *attributes, int32_t thread, int32_t cpu, int32_t group,
                       uint32_t flags) {
    return result_of(
        syscall(SYS_perf_event_open, attributes, thread, cpu, group, (unsigned long)flags));
}

int ub_ioprio_get(void) {
    return result_of(syscall(SYS_ioprio_get, IOPRIO_WHO_PROCESS, CALLING_THREAD));
}

int ub_ioprio_set(int32_t priority) {
    return result_of(syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, CALLING_THREAD, priority));
}
