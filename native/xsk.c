/*
 * Setting up an AF_XDP socket: its memory, its rings, its queue.
 *
 * Owns the setup calls (Documentation/networking/af_xdp.rst). Must never send a frame, or
 * look into one.
 */
#include "xsk.h"

#include <sys/mman.h>

/* Permitted chunk sizes: a frame never crosses the end of a chunk. */
enum { CHUNK_BYTES_MIN = 2048, FRAME_BYTES_MIN = UB_CACHE_LINE_BYTES };

static int set_option(const struct ub_xsk *xsk, int option, const void *value, socklen_t bytes) {
    return setsockopt(xsk->socket, SOL_XDP, option, value, bytes) < 0 ? -errno : 0;
}

/* Many short frames share a chunk, so that they do not all fall into the same few cache sets. */
static uint32_t stride_of(uint32_t frame_bytes) {
    uint32_t stride_bytes = FRAME_BYTES_MIN;
    while (stride_bytes < frame_bytes)
        stride_bytes *= 2;
    return stride_bytes;
}

static int register_memory(struct ub_xsk *xsk, uint32_t frames) {
    size_t bytes = (size_t)frames * xsk->stride_bytes;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    xsk->memory = memory;
    xsk->memory_bytes = bytes;
    struct xdp_umem_reg area = {.addr = (uint64_t)(uintptr_t)memory, .len = bytes};
    area.chunk_size = xsk->stride_bytes > CHUNK_BYTES_MIN ? xsk->stride_bytes : CHUNK_BYTES_MIN;
    return set_option(xsk, XDP_UMEM_REG, &area, sizeof area);
}

static int map_ring(const struct ub_xsk *xsk, struct ub_xsk_ring *ring,
                    const struct xdp_ring_offset *offset, size_t bytes, off_t page) {
    bytes += offset->desc;
    uint8_t *start =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, xsk->socket, page);
    if (start == MAP_FAILED)
        return -errno;
    *ring = (struct ub_xsk_ring){
        .mapped = start,
        .mapped_bytes = bytes,
        .producer = (uint32_t *)(start + offset->producer),
        .consumer = (uint32_t *)(start + offset->consumer),
        .flags = (uint32_t *)(start + offset->flags),
        .entries = start + offset->desc,
    };
    return 0;
}

/* The kernel wants a ring for filling and one for completions of every socket; `own` is XDP_TX_RING
 * or XDP_RX_RING. */
static int make_rings(const struct ub_xsk *xsk, uint32_t to_fill, int own,
                      struct xdp_mmap_offsets *offsets) {
    uint32_t entries = UB_XSK_FRAMES;
    int error = set_option(xsk, XDP_UMEM_FILL_RING, &to_fill, sizeof to_fill);
    if (error == 0)
        error = set_option(xsk, XDP_UMEM_COMPLETION_RING, &entries, sizeof entries);
    if (error == 0)
        error = set_option(xsk, own, &entries, sizeof entries);
    socklen_t bytes = sizeof *offsets;
    if (error == 0 && getsockopt(xsk->socket, SOL_XDP, XDP_MMAP_OFFSETS, offsets, &bytes) < 0)
        error = -errno;
    return error;
}

static int make_sending_rings(struct ub_xsk *xsk) {
    struct xdp_mmap_offsets offsets;
    uint32_t budget = UB_XSK_FRAMES;
    int error = make_rings(xsk, UB_XSK_FRAMES, XDP_TX_RING, &offsets);
    if (error != 0)
        return error;
    /* Otherwise, and always before Linux 6.17, a call takes 32 frames. */
    (void)set_option(xsk, XDP_MAX_TX_SKB_BUDGET, &budget, sizeof budget);
    error = map_ring(xsk, &xsk->send, &offsets.tx, UB_XSK_FRAMES * sizeof(struct xdp_desc),
                     XDP_PGOFF_TX_RING);
    if (error != 0)
        return error;
    return map_ring(xsk, &xsk->completion, &offsets.cr, UB_XSK_FRAMES * sizeof(uint64_t),
                    (off_t)XDP_UMEM_PGOFF_COMPLETION_RING);
}

/* The kernel gets all memory from the start. */
static int make_receiving_rings(struct ub_xsk *xsk) {
    struct xdp_mmap_offsets offsets;
    int error = make_rings(xsk, UB_XSK_TAKEN_FRAMES, XDP_RX_RING, &offsets);
    if (error == 0)
        error = map_ring(xsk, &xsk->receive, &offsets.rx, UB_XSK_FRAMES * sizeof(struct xdp_desc),
                         XDP_PGOFF_RX_RING);
    if (error == 0)
        error = map_ring(xsk, &xsk->fill, &offsets.fr, UB_XSK_TAKEN_FRAMES * sizeof(uint64_t),
                         (off_t)XDP_UMEM_PGOFF_FILL_RING);
    if (error != 0)
        return error;
    uint64_t *addresses = xsk->fill.entries;
    for (uint32_t frame = 0; frame < UB_XSK_TAKEN_FRAMES; frame++)
        addresses[frame] = (uint64_t)frame * xsk->stride_bytes;
    __atomic_store_n(xsk->fill.producer, UB_XSK_TAKEN_FRAMES, __ATOMIC_RELEASE);
    return 0;
}

static int bind_queue(struct ub_xsk *xsk, uint32_t interface, uint32_t queue, uint32_t copy) {
    struct sockaddr_xdp address = {.sxdp_family = AF_XDP,
                                   .sxdp_flags = XDP_USE_NEED_WAKEUP | (copy ? XDP_COPY : 0),
                                   .sxdp_ifindex = interface,
                                   .sxdp_queue_id = queue};
    if (bind(xsk->socket, (const struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    struct xdp_options options = {0};
    socklen_t bytes = sizeof options;
    if (getsockopt(xsk->socket, SOL_XDP, XDP_OPTIONS, &options, &bytes) < 0)
        return -errno;
    xsk->zerocopy = (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
    return 0;
}

int ub_xsk_open(struct ub_xsk *xsk, int32_t socket, uint32_t interface, uint32_t queue,
                uint32_t frame_bytes, uint32_t copy) {
    *xsk = (struct ub_xsk){.socket = socket, .stride_bytes = stride_of(frame_bytes)};
    if (frame_bytes > UB_XSK_FRAME_BYTES_MAX)
        return -EMSGSIZE;
    int error = register_memory(xsk, UB_XSK_FRAMES);
    if (error == 0)
        error = make_sending_rings(xsk);
    if (error == 0)
        error = bind_queue(xsk, interface, queue, copy);
    /* Some drivers (i40e, ice, ixgbe, igb, igc) send without a copy only beside an XDP program. */
    if (error == 0 && xsk->zerocopy)
        error = ub_xsk_kick(xsk);
    if (error != 0)
        ub_xsk_close(xsk);
    return error;
}

int ub_xsk_open_receiver(struct ub_xsk *xsk, int32_t socket, uint32_t interface, uint32_t queue,
                         uint32_t frame_bytes) {
    uint32_t chunk_bytes = CHUNK_BYTES_MIN;
    if (frame_bytes + UB_XSK_ROOM_BYTES > chunk_bytes)
        chunk_bytes = UB_XSK_FRAME_BYTES_MAX;
    *xsk = (struct ub_xsk){.socket = socket, .stride_bytes = chunk_bytes};
    if (frame_bytes + UB_XSK_ROOM_BYTES > UB_XSK_FRAME_BYTES_MAX)
        return -EMSGSIZE;
    int error = register_memory(xsk, UB_XSK_TAKEN_FRAMES);
    if (error == 0)
        error = make_receiving_rings(xsk);
    if (error == 0)
        error = bind_queue(xsk, interface, queue, 0);
    if (error != 0)
        ub_xsk_close(xsk);
    return error;
}

void ub_xsk_give_back(struct ub_xsk *xsk, uint32_t frames) {
    const struct xdp_desc *descriptors = xsk->receive.entries;
    uint64_t *addresses = xsk->fill.entries;
    uint32_t from = *xsk->receive.consumer, to = *xsk->fill.producer;
    for (uint32_t index = 0; index < frames; index++)
        addresses[(to + index) % UB_XSK_TAKEN_FRAMES] =
            descriptors[(from + index) % UB_XSK_FRAMES].addr;
    __atomic_store_n(xsk->fill.producer, to + frames, __ATOMIC_RELEASE);
    __atomic_store_n(xsk->receive.consumer, from + frames, __ATOMIC_RELEASE);
}

uint32_t ub_xsk_purge(struct ub_xsk *xsk) {
    uint32_t held = xsk->held, frames = ub_xsk_received(xsk);
    ub_xsk_give_back(xsk, frames);
    xsk->held = 0;
    return frames - held;
}

void ub_xsk_close(struct ub_xsk *xsk) {
    if (xsk->memory != NULL)
        (void)munmap(xsk->memory, xsk->memory_bytes);
    const struct ub_xsk_ring *rings[] = {&xsk->send, &xsk->completion, &xsk->fill, &xsk->receive};
    for (size_t index = 0; index < sizeof rings / sizeof *rings; index++)
        if (rings[index]->mapped != NULL)
            (void)munmap(rings[index]->mapped, rings[index]->mapped_bytes);
    *xsk = (struct ub_xsk){.socket = -1};
}
