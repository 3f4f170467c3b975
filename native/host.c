/*
 * What needs no loop: system calls without a function in the C library, by this architecture's
 * numbers, and the maximum number of datagrams per GSO message.
 *
 * Each returns the kernel's result, or -errno. Must never interpret a system call's arguments, or
 * send anywhere but where its socket is connected.
 */
#include "datagram.h"

#include <sys/socket.h>
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

/* Sends datagrams of one byte as one message; 0 or -errno. */
static int try_segments(int socket, const uint8_t *bytes, uint32_t segments) {
    return send(socket, bytes, segments, MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Linux has no way to ask: the limit, UDP_MAX_SEGMENTS (include/linux/udp.h), is checked when a
 * message is sent, and was raised from 64 to 128 in 6.9. */
int ub_gso_max(int32_t socket) {
    uint8_t bytes[UB_SEGMENTS_MAX] = {0};
    int segment_bytes = 1, off = 0;
    if (setsockopt(socket, SOL_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes) < 0)
        return -errno;
    /* At least two, else the message is a plain datagram. */
    int error = try_segments(socket, bytes, 2);
    uint32_t accepted = 2, refused = UB_SEGMENTS_MAX + 1;
    while (error == 0 && refused - accepted > 1) {
        uint32_t segments = accepted + (refused - accepted) / 2;
        int result = try_segments(socket, bytes, segments);
        if (result == 0)
            accepted = segments;
        else if (result == -EINVAL)
            refused = segments;
        else
            error = result;
    }
    (void)setsockopt(socket, SOL_UDP, UDP_SEGMENT, &off, sizeof off);
    return error != 0 ? error : (int)accepted;
}
