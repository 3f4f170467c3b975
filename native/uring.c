/*
 * An io_uring by system calls, and whether this user may create one. What the kernel does with
 * datagrams there: docs/kernel.md, io_uring and datagrams.
 */
#include "uring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same on every architecture that Python runs on (include/uapi/asm-generic/unistd.h). */
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif
#ifndef SYS_io_uring_enter
#define SYS_io_uring_enter 426
#endif
#ifndef SYS_io_uring_register
#define SYS_io_uring_register 427
#endif

/* The kernel's names and fields (include/uapi/linux/io_uring.h). */
enum {
    IORING_SETUP_CQSIZE = 1 << 3,
    IORING_SETUP_SUBMIT_ALL = 1 << 7,
    IORING_SETUP_TASKRUN_FLAG = 1 << 9,
    IORING_SETUP_SINGLE_ISSUER = 1 << 12,
    IORING_SETUP_DEFER_TASKRUN = 1 << 13
};
enum { IORING_ENTER_GETEVENTS = 1 << 0, IORING_ENTER_EXT_ARG = 1 << 3 };
enum { IORING_SQ_CQ_OVERFLOW = 1 << 1, IORING_SQ_TASKRUN = 1 << 2 };
enum { IORING_REGISTER_PBUF_RING = 22, IORING_UNREGISTER_PBUF_RING = 23 };
enum { IORING_OFF_SQES = 0x10000000 };

struct sq_offsets {
    uint32_t head;
    uint32_t tail;
    uint32_t ring_mask;
    uint32_t ring_entries;
    uint32_t flags;
    uint32_t dropped;
    uint32_t array;
    uint32_t resv1;
    uint64_t user_addr;
};

struct cq_offsets {
    uint32_t head;
    uint32_t tail;
    uint32_t ring_mask;
    uint32_t ring_entries;
    uint32_t overflow;
    uint32_t cqes;
    uint32_t flags;
    uint32_t resv1;
    uint64_t user_addr;
};

struct params {
    uint32_t sq_entries;
    uint32_t cq_entries;
    uint32_t flags;
    uint32_t sq_thread_cpu;
    uint32_t sq_thread_idle;
    uint32_t features;
    uint32_t wq_fd;
    uint32_t resv[3];
    struct sq_offsets sq_off;
    struct cq_offsets cq_off;
};

struct buf_reg {
    uint64_t ring_addr;
    uint32_t ring_entries;
    uint16_t bgid;
    uint16_t flags;
    uint64_t resv[3];
};

struct timespec64 {
    int64_t tv_sec;
    int64_t tv_nsec;
};

struct getevents_arg {
    uint64_t sigmask;
    uint32_t sigmask_sz;
    uint32_t pad;
    uint64_t ts;
};

_Static_assert(sizeof(struct ub_uring_sqe) == 64, "struct io_uring_sqe");
_Static_assert(sizeof(struct ub_uring_cqe) == 16, "struct io_uring_cqe");
_Static_assert(sizeof(struct ub_uring_buf) == 16, "struct io_uring_buf");
_Static_assert(sizeof(struct params) == 120, "struct io_uring_params");
_Static_assert(sizeof(struct buf_reg) == 40, "struct io_uring_buf_reg");
_Static_assert(sizeof(struct getevents_arg) == 24, "struct io_uring_getevents_arg");

static void *map(int descriptor, size_t bytes, off_t offset) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, offset);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Both rings are one mapping (since Linux 5.4), the entries another. */
static int map_rings(struct ub_uring *ring, const struct params *params) {
    const struct sq_offsets *sq_off = &params->sq_off;
    const struct cq_offsets *cq_off = &params->cq_off;
    size_t to_array = sq_off->array + params->sq_entries * sizeof(uint32_t);
    size_t to_cqes = cq_off->cqes + params->cq_entries * sizeof *ring->completions;
    ring->entry_count = params->sq_entries;
    ring->completion_mask = params->cq_entries - 1;
    ring->rings_bytes = to_array > to_cqes ? to_array : to_cqes;
    ring->rings = map(ring->descriptor, ring->rings_bytes, 0);
    ring->entries =
        map(ring->descriptor, ring->entry_count * sizeof *ring->entries, IORING_OFF_SQES);
    if (ring->rings == NULL || ring->entries == NULL)
        return -ENOMEM;
    uint8_t *base = ring->rings;
    ring->entries_head = (uint32_t *)(base + sq_off->head);
    ring->entries_tail = (uint32_t *)(base + sq_off->tail);
    ring->entries_flags = (uint32_t *)(base + sq_off->flags);
    ring->completions_head = (uint32_t *)(base + cq_off->head);
    ring->completions_tail = (uint32_t *)(base + cq_off->tail);
    ring->completions = (struct ub_uring_cqe *)(base + cq_off->cqes);
    uint32_t *array = (uint32_t *)(base + sq_off->array);
    for (uint32_t index = 0; index < ring->entry_count; index++)
        array[index] = index;
    return 0;
}

/* The kernel does nothing of its own accord: what it put off it does when it is entered, so that a
 * datagram stays in its socket, and counts there, until the loop comes for it. */
int ub_uring_open(struct ub_uring *ring, uint32_t entries, uint32_t completions) {
    struct params params = {.cq_entries = completions,
                            .flags = IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL |
                                     IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SINGLE_ISSUER |
                                     IORING_SETUP_DEFER_TASKRUN};
    *ring = (struct ub_uring){.descriptor = (int)syscall(SYS_io_uring_setup, entries, &params)};
    if (ring->descriptor < 0)
        return -errno;
    int error = map_rings(ring, &params);
    if (error != 0)
        ub_uring_close(ring);
    return error;
}

void ub_uring_close(struct ub_uring *ring) {
    if (ring->descriptor < 0)
        return;
    if (ring->rings != NULL)
        munmap(ring->rings, ring->rings_bytes);
    if (ring->entries != NULL)
        munmap(ring->entries, ring->entry_count * sizeof *ring->entries);
    close(ring->descriptor);
    *ring = (struct ub_uring){.descriptor = -1};
}

struct ub_uring_buf *ub_uring_map_buffers(uint32_t count) {
    void *memory = mmap(NULL, count * sizeof(struct ub_uring_buf), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void ub_uring_unmap_buffers(struct ub_uring_buf *buffers, uint32_t count) {
    if (buffers != NULL)
        munmap(buffers, count * sizeof *buffers);
}

static int register_buffers(struct ub_uring *ring, uint32_t command, struct buf_reg own) {
    return syscall(SYS_io_uring_register, ring->descriptor, command, &own, 1) < 0 ? -errno : 0;
}

int ub_uring_give_buffers(struct ub_uring *ring, struct ub_uring_buf *buffers, uint32_t count) {
    struct buf_reg own = {.ring_addr = (uintptr_t)buffers, .ring_entries = count};
    return register_buffers(ring, IORING_REGISTER_PBUF_RING, own);
}

int ub_uring_take_buffers(struct ub_uring *ring) {
    return register_buffers(ring, IORING_UNREGISTER_PBUF_RING, (struct buf_reg){0});
}

uint32_t ub_uring_unsubmitted(const struct ub_uring *ring) {
    return ring->tail - __atomic_load_n(ring->entries_head, __ATOMIC_ACQUIRE);
}

struct ub_uring_sqe *ub_uring_next(struct ub_uring *ring) {
    if (ub_uring_unsubmitted(ring) == ring->entry_count)
        return NULL;
    struct ub_uring_sqe *entry = &ring->entries[ring->tail++ & (ring->entry_count - 1)];
    *entry = (struct ub_uring_sqe){0};
    return entry;
}

void ub_uring_withdraw(struct ub_uring *ring) {
    ring->tail -= ub_uring_unsubmitted(ring);
}

int ub_uring_enter(struct ub_uring *ring, uint32_t least, uint64_t wait_ns) {
    struct timespec64 limit = {(int64_t)(wait_ns / UB_SECOND_NS),
                               (int64_t)(wait_ns % UB_SECOND_NS)};
    struct getevents_arg argument = {.ts = (uintptr_t)&limit};
    uint32_t flags = IORING_ENTER_GETEVENTS | (wait_ns != 0 ? IORING_ENTER_EXT_ARG : 0);
    __atomic_store_n(ring->entries_tail, ring->tail, __ATOMIC_RELEASE);
    long taken =
        syscall(SYS_io_uring_enter, ring->descriptor, ub_uring_unsubmitted(ring), least, flags,
                wait_ns != 0 ? &argument : NULL, wait_ns != 0 ? sizeof argument : (size_t)0);
    return taken < 0 ? -errno : (int)taken;
}

int ub_uring_pending(const struct ub_uring *ring) {
    uint32_t flags = __atomic_load_n(ring->entries_flags, __ATOMIC_RELAXED);
    return (flags & (IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN)) != 0;
}

int ub_uring_try(uint32_t with_buffers) {
    struct ub_uring ring;
    int error = ub_uring_open(&ring, 1, 1);
    if (error == 0 && with_buffers) {
        struct ub_uring_buf *buffers = ub_uring_map_buffers(1);
        error = buffers != NULL ? ub_uring_give_buffers(&ring, buffers, 1) : -ENOMEM;
        /* First, so that the kernel has none of it any more. */
        ub_uring_close(&ring);
        ub_uring_unmap_buffers(buffers, 1);
    }
    ub_uring_close(&ring);
    return error;
}
