/*
 * The maximum number of datagrams per GSO message.
 *
 * Linux has no way to ask: the limit, UDP_MAX_SEGMENTS (include/linux/udp.h), is checked when a
 * message is sent, and was raised from 64 to 128 in 6.9. Must never send anywhere but where its
 * socket is connected.
 */
#include "outbox.h"

/* Sends datagrams of one byte as one message; 0 or -errno. */
static int try_segments(int socket, const uint8_t *bytes, uint32_t segments) {
    return send(socket, bytes, segments, MSG_DONTWAIT) < 0 ? -errno : 0;
}

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
