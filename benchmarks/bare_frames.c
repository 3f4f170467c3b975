/*
 * What remains of udpbench's AF_XDP loops without their accounting: the same rings, the same calls.
 *
 * The sender offers a frame as it is, without a header or checksum of its own; the receiver looks
 * into none. The program that takes frames is loaded by duels/take.py, and is udpbench's. Both
 * print `ready` once packets may come. Only benchmarks/ways.py compiles and runs this.
 *
 *     bare_frames send DEVICE FRAME BATCH SECONDS              the frame's bytes in hex
 *     bare_frames receive DEVICE BATCH NAP_US SECONDS SOCKETS PROGRAM
 *                                        descriptors of the map of sockets and of the program
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    RING = 2048,
    TAKEN_FRAMES = 4096, /* a full ring, and as many that are free */
    STRIDE_BYTES = 128,  /* of a short frame to be sent */
    CHUNK_BYTES = 2048,
    SEND_BUFFER_BYTES = 64 * 1024 * 1024,
    SEND_BUDGET = 9, /* XDP_MAX_TX_SKB_BUDGET, Linux 6.17 */
    BIND_TRIES = 200,
    DRIVER_MODE = 1 << 2 /* XDP_FLAGS_DRV_MODE */
};

struct ring {
    uint32_t *producer, *consumer;
    void *entries;
};

static void must(int held, const char *what) {
    if (held)
        return;
    perror(what);
    exit(1);
}

static void set(int xsk, int option, uint32_t value) {
    must(setsockopt(xsk, SOL_XDP, option, &value, sizeof value) == 0, "setsockopt");
}

static uint32_t load(const uint32_t *from) {
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

static void store(uint32_t *to, uint32_t value) {
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

static void *pages(size_t bytes, int flags, int file, off_t at) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, file, at);
    must(start != MAP_FAILED, "mmap");
    return start;
}

static struct ring map(int xsk, const struct xdp_ring_offset *at, size_t bytes, uint64_t page) {
    uint8_t *start = pages(at->desc + bytes, MAP_SHARED, xsk, (off_t)page);
    return (struct ring){(uint32_t *)(start + at->producer), (uint32_t *)(start + at->consumer),
                         start + at->desc};
}

/* A socket with its rings, one of them by XDP_TX_RING or XDP_RX_RING. */
static int open_socket(uint32_t frames, uint32_t stride_bytes, int direction, uint8_t **memory,
                       struct xdp_mmap_offsets *offsets) {
    int xsk = socket(AF_XDP, SOCK_RAW, 0);
    must(xsk >= 0, "socket");
    size_t bytes = (size_t)frames * stride_bytes;
    *memory = pages(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct xdp_umem_reg area = {
        .addr = (uintptr_t)*memory, .len = bytes, .chunk_size = CHUNK_BYTES};
    must(setsockopt(xsk, SOL_XDP, XDP_UMEM_REG, &area, sizeof area) == 0, "XDP_UMEM_REG");
    set(xsk, XDP_UMEM_FILL_RING, frames);
    set(xsk, XDP_UMEM_COMPLETION_RING, RING);
    set(xsk, direction, RING);
    socklen_t length = sizeof *offsets;
    must(getsockopt(xsk, SOL_XDP, XDP_MMAP_OFFSETS, offsets, &length) == 0, "XDP_MMAP_OFFSETS");
    return xsk;
}

/* A queue is free some time after its last socket was closed (xp_release_deferred). */
static void bind_queue(int xsk, const char *device) {
    struct sockaddr_xdp own = {.sxdp_family = AF_XDP,
                               .sxdp_flags = XDP_USE_NEED_WAKEUP,
                               .sxdp_ifindex = if_nametoindex(device)};
    int error = EBUSY;
    for (int tries = 0; error == EBUSY && tries < BIND_TRIES; tries++) {
        if (tries > 0)
            usleep(10000);
        error = bind(xsk, (struct sockaddr *)&own, sizeof own) == 0 ? 0 : errno;
    }
    errno = error;
    must(error == 0, "bind");
}

static void tell_ready(void) {
    must(puts("ready") >= 0 && fflush(stdout) == 0, "stdout");
}

static uint32_t frame_from(const char *hex, uint8_t *to) {
    uint32_t bytes = 0;
    for (; bytes < STRIDE_BYTES && sscanf(hex + 2 * bytes, "%2hhx", &to[bytes]) == 1; bytes++)
        ;
    return bytes;
}

/* Each place in the ring has its frame and its descriptor, once and for all. */
static void send_all(char **words) {
    uint32_t batch = (uint32_t)atoi(words[2]), put = 0, buffer_bytes = SEND_BUFFER_BYTES;
    uint32_t budget = RING;
    uint8_t *memory, frame[STRIDE_BYTES];
    struct xdp_mmap_offsets offsets;
    int xsk = open_socket(RING, STRIDE_BYTES, XDP_TX_RING, &memory, &offsets);
    must(setsockopt(xsk, SOL_SOCKET, SO_SNDBUFFORCE, &buffer_bytes, sizeof buffer_bytes) == 0,
         "SO_SNDBUFFORCE");
    (void)setsockopt(xsk, SOL_XDP, SEND_BUDGET, &budget, sizeof budget);
    struct ring ring = map(xsk, &offsets.tx, RING * sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
    struct ring completed =
        map(xsk, &offsets.cr, RING * sizeof(uint64_t), XDP_UMEM_PGOFF_COMPLETION_RING);
    uint32_t bytes = frame_from(words[1], frame);
    struct xdp_desc *descriptors = ring.entries;
    for (uint32_t place = 0; place < RING; place++) {
        memcpy(memory + (size_t)place * STRIDE_BYTES, frame, bytes);
        descriptors[place] = (struct xdp_desc){.addr = place * STRIDE_BYTES, .len = bytes};
    }
    bind_queue(xsk, words[0]);
    tell_ready();
    for (;;) {
        uint32_t done = load(completed.producer);
        store(completed.consumer, done);
        if (put - done <= RING - batch)
            store(ring.producer, put += batch);
        (void)sendto(xsk, NULL, 0, MSG_DONTWAIT, NULL, 0);
    }
}

/* The program's end is the end of this process, which alone holds its link. */
static void attach(int xsk, const char *device, uint32_t sockets, uint32_t program) {
    uint32_t queue = 0;
    union bpf_attr member = {.map_fd = sockets};
    member.key = (uintptr_t)&queue;
    member.value = (uintptr_t)&xsk;
    must(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &member, sizeof member) == 0, "map of sockets");
    union bpf_attr link = {.link_create = {.prog_fd = program,
                                           .target_ifindex = if_nametoindex(device),
                                           .attach_type = BPF_XDP,
                                           .flags = DRIVER_MODE}};
    must(syscall(SYS_bpf, BPF_LINK_CREATE, &link, sizeof link) >= 0, "XDP program");
}

static void receive_all(char **words) {
    uint32_t batch = (uint32_t)atoi(words[1]), taken = 0, given = TAKEN_FRAMES;
    struct timespec nap = {0, atoi(words[2]) * 1000};
    uint8_t *memory;
    struct xdp_mmap_offsets offsets;
    int xsk = open_socket(TAKEN_FRAMES, CHUNK_BYTES, XDP_RX_RING, &memory, &offsets);
    struct ring ring = map(xsk, &offsets.rx, RING * sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
    struct ring fill =
        map(xsk, &offsets.fr, TAKEN_FRAMES * sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
    const struct xdp_desc *descriptors = ring.entries;
    uint64_t *addresses = fill.entries;
    for (uint32_t frame = 0; frame < TAKEN_FRAMES; frame++)
        addresses[frame] = (uint64_t)frame * CHUNK_BYTES;
    store(fill.producer, given);
    bind_queue(xsk, words[0]);
    attach(xsk, words[0], (uint32_t)atoi(words[4]), (uint32_t)atoi(words[5]));
    tell_ready();
    for (;;) {
        uint32_t frames = load(ring.producer) - taken;
        frames = frames < batch ? frames : batch;
        for (uint32_t index = 0; index < frames; index++)
            addresses[(given + index) % TAKEN_FRAMES] = descriptors[(taken + index) % RING].addr;
        store(fill.producer, given += frames);
        store(ring.consumer, taken += frames);
        if (frames < batch)
            (void)nanosleep(&nap, NULL);
    }
}

int main(int count, char **words) {
    if (count == 6 && strcmp(words[1], "send") == 0) {
        alarm((unsigned)atoi(words[5]));
        send_all(words + 2);
    }
    if (count == 8 && strcmp(words[1], "receive") == 0) {
        alarm((unsigned)atoi(words[5]));
        receive_all(words + 2);
    }
    return 2;
}
