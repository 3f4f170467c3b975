/*
 * Receiving frames by AF_XDP: where a datagram lies in a frame, and how long it is.
 *
 * Owns which frames the loop reads. Must never give one back before it is accounted for. The
 * program has looked at the headers (agent/host/bpf/port_taker.py): Ethernet, IPv4 without options
 * or IPv6 without extensions, UDP.
 */
#include "receive.h"
#include "xsk.h"

#include <endian.h>
#include <poll.h>

enum {
    ETHERTYPE_AT = 12,
    IPV6_FIRST_BYTE = 0x86, /* of its ethertype, where IPv4 has 8 */
    IPV4_HEADERS_BYTES = 14 + 20 + 8,
    IPV6_HEADERS_BYTES = 14 + 40 + 8,
    UDP_HEADER_BYTES = 8,
    UDP_LENGTH_AT = 4
};

static const char *check(const struct ub_receive_config *config) {
    if (config->xsk == NULL)
        return "xsk: not NULL with af_xdp";
    if (config->socket_count != 1)
        return "socket_count: 1 with af_xdp";
    if (config->gro)
        return "gro: 0 with af_xdp";
    if (config->timestamps)
        return "timestamps: 0 with af_xdp";
    if (config->echo_every != 0)
        return "echo_every: 0 with af_xdp";
    return NULL;
}

static int prepare(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                   uint32_t room_bytes) {
    (void)room_bytes;
    config->xsk->wake_error = 0;
    *inbox =
        (struct ub_inbox){.own = config->xsk, .batch = batch, .room_bytes = UB_XSK_FRAME_BYTES_MAX};
    inbox->messages = ub_allocate(batch * sizeof *inbox->messages);
    inbox->vectors = ub_allocate(batch * sizeof *inbox->vectors);
    return inbox->messages == NULL || inbox->vectors == NULL ? -ENOMEM : 0;
}

/* By the length in its UDP header: a card pads short frames to 60 bytes. One that the frame
 * contradicts has what there is. */
static void point_at(struct ub_inbox *inbox, uint32_t index, uint8_t *frame, uint32_t bytes) {
    uint32_t headers =
        frame[ETHERTYPE_AT] == IPV6_FIRST_BYTE ? IPV6_HEADERS_BYTES : IPV4_HEADERS_BYTES;
    uint16_t length_wire;
    memcpy(&length_wire, frame + headers - UDP_HEADER_BYTES + UDP_LENGTH_AT, sizeof length_wire);
    uint32_t length = be16toh(length_wire), room = bytes - headers;
    length = length < UDP_HEADER_BYTES || length - UDP_HEADER_BYTES > room
                 ? room
                 : length - UDP_HEADER_BYTES;
    inbox->vectors[index] = (struct iovec){frame + headers, length};
    inbox->messages[index].msg_len = length;
}

/* A driver that ran out of memory to fill waits to be told that there is some: 0 or -errno. Frames
 * that came before stay in the ring, whatever it says. */
static int wake(const struct ub_xsk *xsk) {
    if (!(__atomic_load_n(xsk->fill.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP))
        return 0;
    if (recvfrom(xsk->socket, NULL, 0, MSG_DONTWAIT, NULL, NULL) >= 0)
        return 0;
    int error = errno;
    /* Before Linux 5.11 only poll(2) wakes a receiver (xsk_proto_ops: sock_no_recvmsg). */
    if (error == EOPNOTSUPP) {
        struct pollfd queue = {.fd = xsk->socket, .events = POLLIN};
        error = poll(&queue, 1, 0) < 0 ? errno : 0;
    }
    return -error;
}

/* Points the messages at the datagrams of the oldest frames, and gives those of the call before
 * back. The error of a wake-up stands alone, as any call's: beside frames it waits for the next
 * call. */
static int receive(struct ub_inbox *inbox, int socket, int flags) {
    (void)socket, (void)flags;
    struct ub_xsk *xsk = inbox->own;
    const struct xdp_desc *descriptors = xsk->receive.entries;
    ub_xsk_give_back(xsk, xsk->held);
    xsk->held = 0;
    int error = xsk->wake_error;
    xsk->wake_error = 0;
    if (error != 0)
        return error;
    error = wake(xsk);
    uint32_t from = *xsk->receive.consumer, frames = ub_xsk_received(xsk);
    frames = frames < inbox->batch ? frames : inbox->batch;
    for (uint32_t index = 0; index < frames; index++) {
        const struct xdp_desc *own = &descriptors[(from + index) % UB_XSK_FRAMES];
        point_at(inbox, index, xsk->memory + own->addr, own->len);
    }
    if (frames == 0)
        return error != 0 ? error : -EAGAIN;
    xsk->held = frames;
    xsk->wake_error = error;
    return (int)frames;
}

const struct ub_receive_way ub_xsk_receive_way = {
    .check = check,
    .prepare = prepare,
    .receive = receive,
    .release = ub_inbox_release,
    .messages_max = UB_BATCH_MAX,
    .waits = UB_WAITS_ALL & ~UB_WAIT_BIT(UB_WAIT_BLOCK),
};
