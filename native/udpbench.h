/*
 * The native boundary: what Python may call and what both sides read.
 *
 * Rule: no directives here, because cffi parses this very text. Functions take a config and a
 * stats struct that the caller allocated, return 0 or -errno, and never print, exit, allocate
 * inside a loop, or decide what a count means. Times are CLOCK_MONOTONIC nanoseconds.
 */

enum ub_constant {
    UB_HEADER_BYTES = 18,
    UB_CACHE_LINE_BYTES = 64,
    UB_BATCH_MAX = 1024,         /* UIO_MAXIOV, net/socket.c:__sys_sendmmsg clamps to it */
    UB_WINDOW_WORD_PACKETS = 32, /* sequence numbers per window word */
};

enum ub_send_call { UB_SEND_SENDMMSG = 0 };
enum ub_receive_call { UB_RECEIVE_RECVMMSG = 0 };

/* Written by the steering thread, read by every loop; in memory that all of them map. */
struct ub_control {
    uint32_t stop;
    uint32_t reserved[15];
};

/* ---- sending ---------------------------------------------------------------------------------
 * intended = attempted (unlimited) or what rate and count ask for.
 * attempted = sent + eperm + econnrefused + emsgsize + other_errors; EAGAIN and ENOBUFS are retried
 * and use up no attempt. A sequence number is burnt only for a datagram the kernel took.
 */
struct ub_send_config {
    uint32_t call;       /* enum ub_send_call */
    uint32_t batch;      /* messages per call at most; the rate decides below that */
    uint32_t size_bytes; /* UDP payload, at least UB_HEADER_BYTES */
    uint32_t flow_count;
    const int32_t *sockets; /* flow_count connected sockets, blocking, with SO_SNDTIMEO set */
    const uint16_t *flows;  /* flow_count flow numbers for the header */
    uint64_t *sequences;    /* flow_count next sequence numbers: in and out */
    uint32_t tag;           /* run and phase */
    uint32_t pace_sleeps;   /* 0: spin to each deadline, 1: sleep */
    uint64_t rate_pps;      /* this worker's share; 0: unlimited */
    uint64_t bucket_ns;     /* debt that may be made up after a stall */
    uint64_t count;         /* attempts after which the loop ends, even over flows; 0: none */
    uint64_t epoch_ns;      /* header send times count from here */
    uint64_t start_ns;      /* the loop waits for this time */
    uint64_t end_ns;        /* and leaves at this one; paced, it makes up its debt first */
    const struct ub_control *control;
};

struct ub_send_stats { /* one writer, the loop; cache-line aligned; readable at any time */
    uint64_t attempted_packets;
    uint64_t sent_packets;
    uint64_t sent_bytes; /* UDP payload */
    uint64_t send_calls;
    uint64_t partial_calls; /* calls that took some messages and not all */
    uint64_t eagain;
    uint64_t enobufs;
    uint64_t eperm;
    uint64_t econnrefused;
    uint64_t emsgsize;
    uint64_t other_errors;
    uint64_t last_errno;      /* of other_errors */
    uint64_t stalled_packets; /* tokens beyond bucket_ns that a stall swallowed */
    uint64_t first_ns;        /* before the first call, after the last */
    uint64_t last_ns;
    uint64_t last_cpu; /* CPU that the latest call ran on, plus 1; 0: none yet */
};

/* ---- receiving -------------------------------------------------------------------------------
 * read = received + duplicate + foreign + truncated + corrupt + ancient; late packets are received.
 */
struct ub_flow_state; /* opaque: one per flow, shared by every worker of the host */

struct ub_receive_config {
    uint32_t call;               /* enum ub_receive_call */
    uint32_t batch;              /* messages per call at most */
    uint32_t room_bytes;         /* buffer offered per datagram */
    uint32_t size_bytes;         /* payload that this run sends: any other size is corrupt */
    int32_t socket;              /* blocking, with SO_RCVTIMEO set so that stop is seen */
    uint32_t tag;                /* datagrams of another tag are foreign */
    uint32_t flow_count;         /* flow numbers are 0 .. flow_count - 1 */
    uint32_t window_words;       /* per flow, a power of two */
    uint64_t work_ns;            /* time spent per datagram, spinning: a slow reader; 0: none */
    struct ub_flow_state *flows; /* ub_flow_state_bytes(flow_count, window_words), zeroed */
    const struct ub_control *control;
};

struct ub_receive_stats {      /* one writer, the loop; cache-line aligned; readable at any time */
    uint64_t read_packets;     /* datagrams that the calls returned */
    uint64_t received_packets; /* of this run and phase, each once */
    uint64_t received_bytes;   /* UDP payload of received_packets */
    uint64_t duplicate_packets;
    uint64_t late_packets;      /* received below the highest sequence of their flow (RFC 4737) */
    uint64_t ancient_packets;   /* below the window: late or duplicate cannot be told */
    uint64_t foreign_packets;   /* no header, another tag, or a flow number that is not ours */
    uint64_t truncated_packets; /* ours, but MSG_TRUNC: longer than room_bytes */
    uint64_t corrupt_packets;   /* our tag and flow, but not our size */
    uint64_t receive_calls;
    uint64_t empty_calls; /* calls that timed out without a datagram */
    uint64_t errors;
    uint64_t last_errno;
    uint64_t first_ns; /* time after the call that returned the first, the latest of ours */
    uint64_t last_ns;
    uint64_t last_cpu; /* as in ub_send_stats */
};

/* One flow at its receiver; `packets` are distinct ones, `highest` is the sequence plus 1. */
struct ub_flow_totals {
    uint64_t packets;
    uint64_t highest;
};

int ub_send(const struct ub_send_config *config, struct ub_send_stats *stats);
int ub_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats);
uint64_t ub_flow_state_bytes(uint32_t flow_count, uint32_t window_words);
void ub_flow_totals_read(const struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                         struct ub_flow_totals *totals);

/* For tests: one header as bytes, and one sequence number through a flow's window.
 * ub_window_add returns 0 new, 1 new but late, 2 duplicate, 3 ancient. */
void ub_header_write(uint8_t *to, uint32_t tag, uint16_t flow, uint64_t sequence, uint64_t time_ns);
int ub_window_add(struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                  uint64_t sequence);
