/*
 * What every loop is given: limits, stop, what is recorded besides counts, and datagrams; and the
 * calls that need no loop.
 */

enum ub_constant {
    UB_HEADER_BYTES = 18,
    UB_CACHE_LINE_BYTES = 64,
    UB_BATCH_MAX = 1024,           /* UIO_MAXIOV, net/socket.c:__sys_sendmmsg clamps to it */
    UB_SEGMENTS_MAX = 1024,        /* per GSO message; kernels take 64 or 128, see ub_gso_max */
    UB_MESSAGE_BYTES_MAX = 65535,  /* the UDP length field, RFC 768 */
    UB_ROOM_BYTES_MAX = 65536,     /* per message */
    UB_FLOWS_MAX = 65536,          /* the header's flow number is 16 bits wide */
    UB_SOCKETS_MAX = 65536,        /* per receiver */
    UB_RATE_PPS_MAX = 1000000000,  /* above it ub_pacer_packets would overflow */
    UB_WORK_NS_MAX = 1000000000,   /* with UB_BATCH_MAX datagrams still far from overflow */
    UB_WINDOW_WORD_PACKETS = 32,   /* sequence numbers per window word */
    UB_WINDOW_WORDS_MAX = 1 << 24, /* 128 MiB per flow; leaves 19 bits of lap */
    UB_HISTOGRAM_STEPS = 128,      /* buckets per doubling: each is at most 1/128 wide */
    UB_HISTOGRAM_BUCKETS = 4352,   /* up to 2^40 ns, 18 minutes; the last one has what is beyond */
    UB_MILLISECONDS = 60000,
    UB_STALLS_MAX = 256,
    UB_XSK_FRAMES = 2048, /* and descriptors of each ring: two batches, and a card's ring */
    UB_XSK_FRAME_BYTES_MAX = 4096, /* a page, the largest chunk (net/xdp/xdp_umem.c) */
    UB_XSK_ROOM_BYTES = 256,       /* which the kernel keeps free in a chunk before a received
                                      frame: XDP_PACKET_HEADROOM */
    UB_XSK_TAKEN_FRAMES = 4096,    /* of a receiver: a full ring, and as many again that are read or
                                      free, so that a slow reader never leaves the kernel without */
    UB_LOG_BYTES_MAX = 1 << 30,    /* of a log's ring, a power of two */
    UB_STANDSTILL_NS = 100000000,  /* twice the longest wait for a datagram */
    UB_IDS = 65536                 /* of a flow's datagrams, 16 bits wide */
};

/* ---- control ----------------------------------------------------------------------------------
 */

/* Written by the steering thread, read by every loop; in memory that all of them map. */
struct ub_control {
    uint32_t stop;
    uint32_t reserved[15];
};

/* ---- histograms and series --------------------------------------------------------------------
 * One writer each, the loop; readable at any time, but for stalls, whose neighbours are merged in
 * place: after the loop. Histograms of several workers add up.
 */
/* Log-linear: values below UB_HISTOGRAM_STEPS exactly, then UB_HISTOGRAM_STEPS buckets for each
 * doubling. */
struct ub_histogram {
    uint64_t below_zero; /* values that only a wrong clock offset can produce */
    uint64_t counts[UB_HISTOGRAM_BUCKETS];
};

/* Packets of each millisecond since the start, in a ring. */
struct ub_milliseconds {
    uint64_t begun; /* milliseconds that have begun; all but the latest are over */
    uint64_t reserved[7];
    uint32_t packets[UB_MILLISECONDS];
};

/* Packets that were due between two times since the start, and were given up: never sent, or, if a
 * count asks for more packets, put off until later ones are due. */
struct ub_stall {
    uint64_t from_ns;
    uint64_t until_ns;
    uint64_t packets;
};

/* When the list is full, neighbours are merged. */
struct ub_stalls {
    uint64_t count;
    struct ub_stall list[UB_STALLS_MAX];
};

/* For tests: the bucket of a value. */
uint32_t ub_histogram_bucket(uint64_t value);

/* ---- datagrams ----------------------------------------------------------------------------------
 * Header: tag (32 bits), flow (16), sequence number (48), time since the epoch in ns (48), all
 * big-endian; then the pattern.
 */

/* The pattern depends on the position in the payload alone, so that it is written once and not for
 * each datagram. */
void ub_pattern_write(uint8_t *to, uint32_t bytes);

/* For tests: one header as bytes. */
void ub_header_write(uint8_t *to, uint32_t tag, uint16_t flow, uint64_t sequence, uint64_t time_ns);

/* A datagram that a run sends; a run of several has an array of them. */
struct ub_datagram {
    const uint8_t *bytes; /* the user's, never written to; NULL: the header, from UB_HEADER_BYTES
                             on, and the pattern */
    uint32_t size_bytes;  /* UDP payload */
};

/* ---- system calls without a function in the C library -------------------------------------------
 * The kernel's result, or -errno. Attributes are those of the manual pages: bpf(2),
 * perf_event_open(2); the I/O priority is that of the calling thread, ioprio_set(2).
 */
int ub_bpf(int32_t command, void *attributes, uint32_t bytes);
int ub_perf_event_open(void *attributes, int32_t thread, int32_t cpu, int32_t group,
                       uint32_t flags);
int ub_ioprio_get(void);
int ub_ioprio_set(int32_t priority);

/* Whether an io_uring, also with provided buffers, is available: 0 or -errno. */
int ub_uring_try(uint32_t with_buffers);

/* The most datagrams the kernel takes in one GSO message, or -errno if it takes none: found by
 * sending 1-byte datagrams on this connected socket, best one that is connected to itself. */
int ub_gso_max(int32_t socket);
