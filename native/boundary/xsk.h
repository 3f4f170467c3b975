/*
 * A socket of AF_XDP, which sends or receives; one thread uses it.
 */

/* What the kernel shares of a ring (Documentation/networking/af_xdp.rst). */
struct ub_xsk_ring {
    void *mapped;
    uint64_t mapped_bytes;
    uint32_t *producer;
    uint32_t *consumer;
    uint32_t *flags;
    void *entries;
};

struct ub_xsk {
    int32_t socket;
    uint32_t stride_bytes; /* from one frame to the next */
    uint8_t *memory;
    uint64_t memory_bytes;
    uint32_t zerocopy; /* the driver reads or writes frames without a copy */
    /* Of a sender: UB_XSK_FRAMES frames, and what is on its way. */
    struct ub_xsk_ring send;
    struct ub_xsk_ring completion;
    uint32_t in_flight;              /* frames put and not completed */
    uint16_t pending[UB_XSK_FRAMES]; /* of them, by bank of a batch */
    /* Of a receiver: UB_XSK_TAKEN_FRAMES frames, and what its loop still reads. */
    struct ub_xsk_ring fill;
    struct ub_xsk_ring receive;
    uint32_t held;      /* descriptors whose frames are not given back */
    int32_t wake_error; /* -errno of a wake-up in a call that brought frames: for the next call */
};

/* Sets up an AF_XDP socket for a queue of an interface, with frames of frame_bytes at most, by copy
 * only or as the driver can: 0, or -errno and closed. EBUSY: the queue has one, or its last one is
 * still being released. EINVAL or ENXIO of a driver that wants a program: by copy it works. */
int ub_xsk_open(struct ub_xsk *xsk, int32_t socket, uint32_t interface, uint32_t queue,
                uint32_t frame_bytes, uint32_t copy);

/* The same for a socket that receives frames of frame_bytes at most; the kernel has all memory. */
int ub_xsk_open_receiver(struct ub_xsk *xsk, int32_t socket, uint32_t interface, uint32_t queue,
                         uint32_t frame_bytes);

/* Returns every received frame to the kernel; the result is how many no loop has read. */
uint32_t ub_xsk_purge(struct ub_xsk *xsk);

/* Frees the memory; the caller closes the socket. */
void ub_xsk_close(struct ub_xsk *xsk);
