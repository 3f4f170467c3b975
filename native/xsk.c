/*
 * Setting up an AF_XDP socket that sends: its memory, its rings, its queue.
 *
 * Owns how the kernel is asked (Documentation/networking/af_xdp.rst). Must never send a frame.
 */
#include "xsk.h"

#include <sys/mman.h>

/* What a chunk may be: a frame never crosses the end of one. */
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

static int register_memory(struct ub_xsk *xsk) {
    size_t bytes = (size_t)UB_XSK_FRAMES * xsk->stride_bytes;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    xsk->memory = memory;
    struct xdp_umem_reg area = {.addr = (uint64_t)(uintptr_t)memory, .len = bytes};
    area.chunk_size = xsk->stride_bytes > CHUNK_BYTES_MIN ? xsk->stride_bytes : CHUNK_BYTES_MIN;
    return set_option(xsk, XDP_UMEM_REG, &area, sizeof area);
}

static int map_ring(const struct ub_xsk *xsk, struct ub_xsk_ring *ring,
                    const struct xdp_ring_offset *offset, size_t entry_bytes, off_t page) {
    size_t bytes = offset->desc + UB_XSK_FRAMES * entry_bytes;
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

/* The kernel wants a fill ring also of a socket that receives nothing. */
static int make_rings(struct ub_xsk *xsk) {
    static const int rings[] = {XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_TX_RING};
    uint32_t entries = UB_XSK_FRAMES;
    int error = 0;
    for (size_t index = 0; error == 0 && index < sizeof rings / sizeof *rings; index++)
        error = set_option(xsk, rings[index], &entries, sizeof entries);
    if (error != 0)
        return error;
    /* Else a call takes 32 frames; before Linux 6.17 it does. */
    (void)set_option(xsk, XDP_MAX_TX_SKB_BUDGET, &entries, sizeof entries);
    struct xdp_mmap_offsets offsets;
    socklen_t bytes = sizeof offsets;
    if (getsockopt(xsk->socket, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &bytes) < 0)
        return -errno;
    error = map_ring(xsk, &xsk->send, &offsets.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
    if (error != 0)
        return error;
    return map_ring(xsk, &xsk->completion, &offsets.cr, sizeof(uint64_t),
                    (off_t)XDP_UMEM_PGOFF_COMPLETION_RING);
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
    int error = register_memory(xsk);
    if (error == 0)
        error = make_rings(xsk);
    if (error == 0)
        error = bind_queue(xsk, interface, queue, copy);
    /* Some drivers (i40e, ice, ixgbe, igb, igc) send without a copy only beside an XDP program. */
    if (error == 0 && xsk->zerocopy)
        error = ub_xsk_kick(xsk);
    if (error != 0)
        ub_xsk_close(xsk);
    return error;
}

void ub_xsk_close(struct ub_xsk *xsk) {
    if (xsk->memory != NULL)
        (void)munmap(xsk->memory, (size_t)UB_XSK_FRAMES * xsk->stride_bytes);
    const struct ub_xsk_ring *rings[] = {&xsk->send, &xsk->completion};
    for (size_t index = 0; index < sizeof rings / sizeof *rings; index++)
        if (rings[index]->mapped != NULL)
            (void)munmap(rings[index]->mapped, rings[index]->mapped_bytes);
    *xsk = (struct ub_xsk){.socket = -1};
}
