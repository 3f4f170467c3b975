/*
 * A receiver's log.
 *
 * The loop puts datagrams into a ring, a writer takes them out into files `name.0`, `name.1` ...
 * A file is a struct ub_log_head and frames: a struct ub_log_frame and its bytes, host order.
 * logged + failed = datagrams that the ring took.
 */

struct ub_log_head {
    char magic[8];         /* "UBLOG1" and two zeros */
    uint64_t monotonic_ns; /* the clock that stamps frames, */
    uint64_t realtime_ns;  /* and the calendar's, read at one moment */
};

struct ub_log_frame {
    uint64_t arrived_ns; /* CLOCK_MONOTONIC when its call had returned */
    uint32_t length;     /* payload on the wire */
    uint32_t bytes;      /* how many bytes of it follow this frame */
};

struct ub_log {
    uint64_t put_bytes; /* that the loop ever put into the ring */
    uint64_t reserved_put[7];
    uint64_t taken_bytes; /* that the writer ever took out of it */
    uint64_t reserved_taken[7];
    uint8_t *ring;
    uint64_t ring_bytes; /* a power of two */
};

struct ub_log_config {
    struct ub_log *log;
    const struct ub_control *ended; /* stop: the loop has left */
    uint64_t drain_ns;              /* how long it may write what is left in the ring then */

    /* Files. */
    int32_t folder;          /* its descriptor */
    const char *name;        /* in the folder, without a slash */
    uint64_t max_file_bytes; /* a file ends before the frame that would exceed it */
    uint32_t keep;           /* files, the one being written included; older ones are removed */
    uint32_t pipes_of;       /* a user whose pipes are written to, besides this process's own */
};

struct ub_log_stats {
    uint64_t logged_packets;
    uint64_t failed_packets; /* not written to disk */
    uint64_t logged_bytes;   /* heads and frames included */
    uint64_t log_files;      /* begun */
    uint64_t log_errors;     /* calls */
    uint64_t log_last_errno;
    uint64_t log_first_ns; /* stamps of the first and the latest logged frame */
    uint64_t log_last_ns;
    uint64_t log_first_packets; /* logged packets whose stamp is log_first_ns */
};

int ub_log_write(const struct ub_log_config *config, struct ub_log_stats *stats);
const char *ub_log_write_check(const struct ub_log_config *config);
