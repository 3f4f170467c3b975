/*
 * An io_uring by system calls: two rings shared with the kernel, and the call that submits and
 * waits.
 *
 * Owns the layout of what is shared (include/uapi/linux/io_uring.h; the headers of many
 * distributions lack parts of it). Must never know what is asked for.
 */
#ifndef UB_URING_H
#define UB_URING_H

#include "loop.h"

/* What is asked for: opcodes, and flags of entries and of completions, by the kernel's names. */
enum {
    IORING_OP_SENDMSG = 9,
    IORING_OP_ASYNC_CANCEL = 14,
    IORING_OP_SEND = 26,
    IORING_OP_RECV = 27
};
enum { IOSQE_IO_LINK = 1 << 2, IOSQE_BUFFER_SELECT = 1 << 5 };
enum { IORING_RECV_MULTISHOT = 1 << 1 };
enum { IORING_ASYNC_CANCEL_ALL = 1 << 0, IORING_ASYNC_CANCEL_ANY = 1 << 2 };
enum { IORING_CQE_F_BUFFER = 1 << 0, IORING_CQE_F_MORE = 1 << 1, IORING_CQE_BUFFER_SHIFT = 16 };

/* struct io_uring_sqe */
struct ub_uring_sqe {
    uint8_t opcode;
    uint8_t flags;   /* IOSQE_ */
    uint16_t ioprio; /* of a receive: IORING_RECV_ */
    int32_t fd;
    uint64_t off;
    uint64_t addr;
    uint32_t len;
    uint32_t op_flags;  /* of a message: MSG_; of a cancellation: IORING_ASYNC_CANCEL_ */
    uint64_t user_data; /* comes back in its completions */
    uint16_t buf_group;
    uint16_t personality;
    int32_t file_index;
    uint64_t resv[2];
};

/* struct io_uring_cqe */
struct ub_uring_cqe {
    uint64_t user_data;
    int32_t res;    /* or -errno */
    uint32_t flags; /* IORING_CQE_F_; from IORING_CQE_BUFFER_SHIFT on the number of its buffer */
};

/* struct io_uring_buf: a buffer that the kernel may fill. A ring of them begins with one whose last
 * field is the ring's tail. */
struct ub_uring_buf {
    uint64_t addr;
    uint32_t len;
    uint16_t bid;
    uint16_t tail;
};

struct ub_uring {
    int descriptor; /* -1: none */
    uint32_t tail;  /* entries written; the kernel learns of them when it is entered */
    uint32_t entry_count;
    uint32_t completion_mask;
    uint32_t *entries_head;
    uint32_t *entries_tail;
    uint32_t *entries_flags;
    uint32_t *completions_head;
    uint32_t *completions_tail;
    struct ub_uring_sqe *entries;
    struct ub_uring_cqe *completions;
    void *rings;
    size_t rings_bytes;
};

/* Opens a ring for the calling thread alone, with room for at least `entries` and `completions`.
 * Returns 0, or -errno with the ring closed: ENOSYS if it is not built in, EPERM by
 * kernel.io_uring_disabled or seccomp, EINVAL before Linux 6.1. */
int ub_uring_open(struct ub_uring *ring, uint32_t entries, uint32_t completions);
void ub_uring_close(struct ub_uring *ring);

/* Memory for a ring of buffers, zeroed, which begins at a page, as the kernel demands, whatever
 * their size; NULL: there is none. */
struct ub_uring_buf *ub_uring_map_buffers(uint32_t count);
void ub_uring_unmap_buffers(struct ub_uring_buf *buffers, uint32_t count);

/* Gives the kernel a ring of buffers, or takes it back: 0 or -errno. */
int ub_uring_give_buffers(struct ub_uring *ring, struct ub_uring_buf *buffers, uint32_t count);
int ub_uring_take_buffers(struct ub_uring *ring);

/* The next entry, zeroed; NULL if the kernel has not taken those before. */
struct ub_uring_sqe *ub_uring_next(struct ub_uring *ring);

/* Submits what was written, lets the kernel do what it put off, and waits for at least `least`
 * completions, for `wait_ns` or, if that is 0, without end. Returns the number of entries taken, or
 * -errno: ETIME when the wait is over. */
int ub_uring_enter(struct ub_uring *ring, uint32_t least, uint64_t wait_ns);

/* Drops the entries that the kernel did not take. */
void ub_uring_withdraw(struct ub_uring *ring);

/* Entries not yet submitted to the kernel. */
uint32_t ub_uring_unsubmitted(const struct ub_uring *ring);

/* Whether the kernel has something to do, or completions beyond the ring, as soon as it is entered.
 */
int ub_uring_pending(const struct ub_uring *ring);

/* The next completion, NULL if there is none; it is the caller's until it says that it has seen it.
 */
static inline const struct ub_uring_cqe *ub_uring_completed(const struct ub_uring *ring) {
    uint32_t head = *ring->completions_head;
    if (head == __atomic_load_n(ring->completions_tail, __ATOMIC_ACQUIRE))
        return NULL;
    return &ring->completions[head & ring->completion_mask];
}

static inline void ub_uring_seen(struct ub_uring *ring) {
    __atomic_store_n(ring->completions_head, *ring->completions_head + 1, __ATOMIC_RELEASE);
}

#endif
