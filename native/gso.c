/*
 * How many datagrams the kernel takes in one GSO message.
 *
 * Linux has no way to ask: the limit, UDP_MAX_SEGMENTS, is looked at when a message is sent, and
 * was raised from 64 to 128 in 6.9. Must never send to anywhere but where its socket is connected.
 */
#include "internal.h"

#include <netinet/udp.h>
#include <sys/socket.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

/* 0 or -errno of so many datagrams of one byte. */
static int offer(int socket, const uint8_t *bytes, uint32_t segments) {
    return send(socket, bytes, segments, MSG_DONTWAIT) < 0 ? -errno : 0;
}

int ub_gso_max(int32_t socket) {
    uint8_t bytes[UB_SEGMENTS_MAX] = {0};
    int segment_bytes = 1, off = 0;
    if (setsockopt(socket, SOL_UDP, UDP_SEGMENT, &segment_bytes, sizeof segment_bytes) < 0)
        return -errno;
    /* Two at least, else the message is a plain datagram. */
    int error = offer(socket, bytes, 2);
    uint32_t taken = 2, refused = UB_SEGMENTS_MAX + 1;
    while (error == 0 && refused - taken > 1) {
        uint32_t segments = taken + (refused - taken) / 2;
        int result = offer(socket, bytes, segments);
        if (result == 0)
            taken = segments;
        else if (result == -EINVAL)
            refused = segments;
        else
            error = result;
    }
    (void)setsockopt(socket, SOL_UDP, UDP_SEGMENT, &off, sizeof off);
    return error != 0 ? error : (int)taken;
}
