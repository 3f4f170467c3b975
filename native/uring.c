/*
 * An io_uring by system calls, and whether this user may create one. What the kernel does with
 * datagrams there: docs/kernel.md, io_uring and datagrams.
 */
#include "uring.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same on every architecture that Python runs on (include/uapi/asm-generic/unistd.h). */
enum { SYS_SETUP = 425, SYS_ENTER = 426, SYS_REGISTER = 427 };
enum {
    SETUP_COMPLETIONS = 1 << 3,
    SETUP_SUBMIT_ALL = 1 << 7,
    SETUP_TASKRUN_FLAG = 1 << 9,
    SETUP_SINGLE_ISSUER = 1 << 12,
    SETUP_DEFER_TASKRUN = 1 << 13
};
enum { ENTER_GETEVENTS = 1 << 0, ENTER_EXTENDED = 1 << 3 };
enum { FLAG_OVERFLOWN = 1 << 1, FLAG_TASKRUN = 1 << 2 };
enum { REGISTER_BUFFER_RING = 22, UNREGISTER_BUFFER_RING = 23 };
enum { ENTRIES_AT = 0x10000000 };

struct ring_offsets {
    uint32_t head;
    uint32_t tail;
    uint32_t mask;
    uint32_t count;
    uint32_t fifth;   /* entries: flags; completions: those that were lost */
    uint32_t sixth;   /* entries: those that were lost; completions: the completions */
    uint32_t seventh; /* entries: the array of their numbers; completions: flags */
    uint32_t reserved;
    uint64_t address;
};

struct parameters {
    uint32_t entry_count;
    uint32_t completion_count;
    uint32_t flags;
    uint32_t thread_cpu;
    uint32_t thread_idle;
    uint32_t features;
    uint32_t workers_of;
    uint32_t reserved[3];
    struct ring_offsets entries;
    struct ring_offsets completions;
};

struct buffer_ring {
    uint64_t address;
    uint32_t count;
    uint16_t group;
    uint16_t flags;
    uint64_t reserved[3];
};

struct wait_limit {
    int64_t seconds;
    int64_t nanoseconds;
};

struct wait_argument {
    uint64_t signals;
    uint32_t signals_bytes;
    uint32_t reserved;
    uint64_t limit;
};

_Static_assert(sizeof(struct ub_uring_entry) == 64, "struct io_uring_sqe");
_Static_assert(sizeof(struct ub_uring_completion) == 16, "struct io_uring_cqe");
_Static_assert(sizeof(struct ub_uring_buffer) == 16, "struct io_uring_buf");
_Static_assert(sizeof(struct parameters) == 120, "struct io_uring_params");
_Static_assert(sizeof(struct buffer_ring) == 40, "struct io_uring_buf_reg");
_Static_assert(sizeof(struct wait_argument) == 24, "struct io_uring_getevents_arg");

static void *map(int descriptor, size_t bytes, off_t offset) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, offset);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Both rings are one mapping (since Linux 5.4), the entries another. */
static int map_rings(struct ub_uring *ring, const struct parameters *parameters) {
    const struct ring_offsets *entries = &parameters->entries;
    const struct ring_offsets *completions = &parameters->completions;
    size_t to_array = entries->seventh + parameters->entry_count * sizeof(uint32_t);
    size_t to_completions =
        completions->sixth + parameters->completion_count * sizeof *ring->completions;
    ring->entry_count = parameters->entry_count;
    ring->completion_mask = parameters->completion_count - 1;
    ring->rings_bytes = to_array > to_completions ? to_array : to_completions;
    ring->rings = map(ring->descriptor, ring->rings_bytes, 0);
    ring->entries = map(ring->descriptor, ring->entry_count * sizeof *ring->entries, ENTRIES_AT);
    if (ring->rings == NULL || ring->entries == NULL)
        return -ENOMEM;
    uint8_t *base = ring->rings;
    ring->entries_head = (uint32_t *)(base + entries->head);
    ring->entries_tail = (uint32_t *)(base + entries->tail);
    ring->entries_flags = (uint32_t *)(base + entries->fifth);
    ring->completions_head = (uint32_t *)(base + completions->head);
    ring->completions_tail = (uint32_t *)(base + completions->tail);
    ring->completions = (struct ub_uring_completion *)(base + completions->sixth);
    uint32_t *numbers = (uint32_t *)(base + entries->seventh);
    for (uint32_t index = 0; index < ring->entry_count; index++)
        numbers[index] = index;
    return 0;
}

/* The kernel does nothing of its own accord: what it put off it does when it is entered, so that a
 * datagram stays in its socket, and counts there, until the loop comes for it. */
int ub_uring_open(struct ub_uring *ring, uint32_t entries, uint32_t completions) {
    struct parameters parameters = {.completion_count = completions,
                                    .flags = SETUP_COMPLETIONS | SETUP_SUBMIT_ALL |
                                             SETUP_TASKRUN_FLAG | SETUP_SINGLE_ISSUER |
                                             SETUP_DEFER_TASKRUN};
    *ring = (struct ub_uring){.descriptor = (int)syscall(SYS_SETUP, entries, &parameters)};
    if (ring->descriptor < 0)
        return -errno;
    int error = map_rings(ring, &parameters);
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

struct ub_uring_buffer *ub_uring_map_buffers(uint32_t count) {
    void *memory = mmap(NULL, count * sizeof(struct ub_uring_buffer), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void ub_uring_unmap_buffers(struct ub_uring_buffer *buffers, uint32_t count) {
    if (buffers != NULL)
        munmap(buffers, count * sizeof *buffers);
}

static int register_buffers(struct ub_uring *ring, uint32_t command, struct buffer_ring own) {
    return syscall(SYS_REGISTER, ring->descriptor, command, &own, 1) < 0 ? -errno : 0;
}

int ub_uring_give_buffers(struct ub_uring *ring, struct ub_uring_buffer *buffers, uint32_t count) {
    struct buffer_ring own = {.address = (uintptr_t)buffers, .count = count};
    return register_buffers(ring, REGISTER_BUFFER_RING, own);
}

int ub_uring_take_buffers(struct ub_uring *ring) {
    return register_buffers(ring, UNREGISTER_BUFFER_RING, (struct buffer_ring){0});
}

uint32_t ub_uring_unsubmitted(const struct ub_uring *ring) {
    return ring->tail - __atomic_load_n(ring->entries_head, __ATOMIC_ACQUIRE);
}

struct ub_uring_entry *ub_uring_next(struct ub_uring *ring) {
    if (ub_uring_unsubmitted(ring) == ring->entry_count)
        return NULL;
    struct ub_uring_entry *entry = &ring->entries[ring->tail++ & (ring->entry_count - 1)];
    *entry = (struct ub_uring_entry){0};
    return entry;
}

void ub_uring_withdraw(struct ub_uring *ring) {
    ring->tail -= ub_uring_unsubmitted(ring);
}

int ub_uring_enter(struct ub_uring *ring, uint32_t least, uint64_t wait_ns) {
    struct wait_limit limit = {(int64_t)(wait_ns / UB_SECOND_NS),
                               (int64_t)(wait_ns % UB_SECOND_NS)};
    struct wait_argument argument = {.limit = (uintptr_t)&limit};
    uint32_t flags = ENTER_GETEVENTS | (wait_ns != 0 ? ENTER_EXTENDED : 0);
    __atomic_store_n(ring->entries_tail, ring->tail, __ATOMIC_RELEASE);
    long taken =
        syscall(SYS_ENTER, ring->descriptor, ub_uring_unsubmitted(ring), least, flags,
                wait_ns != 0 ? &argument : NULL, wait_ns != 0 ? sizeof argument : (size_t)0);
    return taken < 0 ? -errno : (int)taken;
}

int ub_uring_pending(const struct ub_uring *ring) {
    uint32_t flags = __atomic_load_n(ring->entries_flags, __ATOMIC_RELAXED);
    return (flags & (FLAG_OVERFLOWN | FLAG_TASKRUN)) != 0;
}

int ub_uring_try(uint32_t with_buffers) {
    struct ub_uring ring;
    int error = ub_uring_open(&ring, 1, 1);
    if (error == 0 && with_buffers) {
        struct ub_uring_buffer *buffers = ub_uring_map_buffers(1);
        error = buffers != NULL ? ub_uring_give_buffers(&ring, buffers, 1) : -ENOMEM;
        /* First, so that the kernel has none of it any more. */
        ub_uring_close(&ring);
        ub_uring_unmap_buffers(buffers, 1);
    }
    ub_uring_close(&ring);
    return error;
}
