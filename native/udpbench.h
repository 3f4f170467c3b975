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
    UB_BATCH_MAX = 1024,          /* UIO_MAXIOV, net/socket.c:__sys_sendmmsg clamps to it */
    UB_WINDOW_WORD_PACKETS = 32,  /* sequence numbers per window word */
    UB_SEGMENTS_MAX = 1024,       /* per GSO message; kernels take 64 or 128, see ub_gso_max */
    UB_MESSAGE_BYTES_MAX = 65535, /* the UDP length field, RFC 768 */
    UB_HISTOGRAM_STEPS = 128,     /* buckets per doubling: each is at most 1/128 wide */
    UB_HISTOGRAM_BUCKETS = 4352,  /* up to 2^40 ns, 18 minutes; the last one holds what is beyond */
    UB_MILLISECONDS = 60000,
    UB_STALLS_MAX = 256,
    UB_LOG_BYTES_MAX = 1 << 30 /* of a ring, a power of two */
};

enum ub_send_call { UB_SEND_SENDMMSG = 0, UB_SEND_SEND = 1 };
enum ub_receive_call { UB_RECEIVE_RECVMMSG = 0, UB_RECEIVE_RECV = 1 };

/* How a receiver waits. Busy polling is blocking with SO_BUSY_POLL set on the socket: then the
 * call itself polls the device queue before it sleeps (net/core/datagram.c). */
enum ub_wait {
    UB_WAIT_BLOCK = 0, /* in the receiving call; one socket */
    UB_WAIT_EPOLL = 1, /* in epoll_wait, level-triggered, one call for each ready socket */
    UB_WAIT_SPIN = 2,  /* not at all: calls that do not block, one socket after the other */
    UB_WAIT_NAP = 3,   /* the same, and nap_ns of sleep after a round in which no batch was full */
};

/* What is looked at. COPY and NONE see no header: duplicate, late, ancient, foreign and the totals
 * of the flows stay 0 and mean unknown, and received are all datagrams of a size we send. */
enum ub_read {
    UB_READ_HEADER = 0,
    UB_READ_COPY = 1, /* the payload is copied and not looked at */
    UB_READ_NONE = 2, /* MSG_TRUNC into no room: not even copied; truncated is then unknown, too */
    UB_READ_VERIFY = 3, /* header, and every byte behind it against ub_pattern_write */
};

enum ub_fault {
    UB_FAULT_NONE = 0,
    UB_FAULT_HANG = 1, /* sleeps until stop and reads nothing */
    UB_FAULT_EXIT = 2, /* returns; a reuseport member leaves its group when its socket is closed */
};

/* Written by the steering thread, read by every loop; in memory that all of them map. */
struct ub_control {
    uint32_t stop;
    uint32_t reserved[15];
};

/* ---- distributions and series ------------------------------------------------------------------
 * One writer each, the loop; readable at any time. Histograms of several workers add up.
 */

/* Log-linear: values below UB_HISTOGRAM_STEPS exactly, then UB_HISTOGRAM_STEPS buckets for each
 * doubling. */
struct ub_histogram {
    uint64_t below_zero; /* values that only a wrong clock offset can make */
    uint64_t counts[UB_HISTOGRAM_BUCKETS];
};

/* Packets of each millisecond since the start, in a ring. */
struct ub_milliseconds {
    uint64_t begun; /* milliseconds that have begun; all but the latest are over */
    uint64_t reserved[7];
    uint32_t packets[UB_MILLISECONDS];
};

/* Packets that were due between two times since the start, and were given up: unsent, or where a
 * count asks for more packets put off until later ones are due. */
struct ub_stall {
    uint64_t from_ns;
    uint64_t until_ns;
    uint64_t packets;
};

/* When the list is full, neighbours become one. */
struct ub_stalls {
    uint64_t count;
    struct ub_stall list[UB_STALLS_MAX];
};

/* ---- sending ---------------------------------------------------------------------------------
 * intended = attempted (unlimited) or what rate and count ask for.
 * attempted = sent + eperm + econnrefused + emsgsize + other_errors; EAGAIN and ENOBUFS are retried
 * and use up no attempt. A sequence number is burnt only for a datagram the kernel took.
 * Of a GSO message the kernel takes all datagrams or none, so that a refused one counts with all of
 * them. A paced GSO message goes when its last datagram is due; it is shorter only where count or
 * the end leave less. Datagrams below UB_HEADER_BYTES carry no header, only the pattern. The time
 * in the header is when the datagram was due; with an unlimited rate, when its call began.
 */
struct ub_send_config {
    uint32_t call;       /* enum ub_send_call */
    uint32_t batch;      /* messages per call at most; the rate decides below that, and how long
                            calls last; send has 1 */
    uint32_t size_bytes; /* UDP payload */
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
    uint32_t gso_segments;   /* datagrams per message (UDP_SEGMENT); 0 or 1: no GSO */
    uint32_t tail_bytes;     /* payload of a GSO message's last datagram; 0: size_bytes */
    uint32_t zerocopy;       /* MSG_ZEROCOPY; the sockets have SO_ZEROCOPY set */
    uint32_t *zerocopy_next; /* flow_count numbers of the sockets' next completions: in and out, 0
                                for a new socket; only with zerocopy */
    struct ub_histogram *pacing; /* each message: how long after it was due its call began; NULL:
                                    none; nothing with an unlimited rate */
    struct ub_stalls *stalls;    /* NULL: none */
    struct ub_milliseconds *milliseconds; /* sent packets, by the end of their call; NULL: none */
};

/* One writer, the loop; readable at any time; alone on its cache lines. */
struct ub_send_stats {
    uint64_t attempted_packets;
    uint64_t sent_packets;
    uint64_t sent_bytes; /* UDP payload */
    uint64_t send_calls;
    uint64_t partial_calls; /* calls that took some messages and not all */
    uint64_t eagain;        /* calls, as enobufs; the errors below it are datagrams */
    uint64_t enobufs;
    uint64_t eperm;
    uint64_t econnrefused;
    uint64_t emsgsize;
    uint64_t other_errors;
    uint64_t last_errno;      /* of other_errors */
    uint64_t stalled_packets; /* due and given up: beyond bucket_ns, or still owed when it left */
    uint64_t first_ns;        /* before the first call, after the last */
    uint64_t last_ns;
    uint64_t last_cpu;          /* CPU that the latest call ran on, plus 1; 0: none yet */
    uint64_t sent_messages;     /* that the kernel took, each one skb until it is segmented */
    uint64_t zerocopy_messages; /* of them, completed without a copy */
    uint64_t zerocopy_copied_messages; /* and completed with one; the rest is not completed yet */
    uint64_t first_packets; /* paced: sent by the call that first_ns is of, which opens the span to
                               last_ns; 0 with an unlimited rate, whose span has all its calls */
};

/* ---- receiving -------------------------------------------------------------------------------
 * read = received + duplicate + foreign + truncated + corrupt + ancient; late packets are received.
 */
struct ub_flow_state; /* opaque: one per flow, shared by every worker of the host */

struct ub_receive_config {
    uint32_t call;               /* enum ub_receive_call */
    uint32_t batch;              /* messages per call at most; recv has 1 */
    uint32_t room_bytes;         /* buffer offered per message; with gro 65535 holds any */
    uint32_t size_bytes;         /* payload that this run sends: any other size is corrupt */
    int32_t socket;              /* blocking, with SO_RCVTIMEO set so that stop is seen */
    uint32_t tag;                /* datagrams of another tag are foreign */
    uint32_t flow_count;         /* flow numbers are 0 .. flow_count - 1 */
    uint32_t window_words;       /* per flow, a power of two */
    uint64_t work_ns;            /* time spent per datagram, spinning: a slow reader; 0: none */
    struct ub_flow_state *flows; /* ub_flow_state_bytes(flow_count, window_words), zeroed */
    const struct ub_control *control;
    uint32_t wait;              /* enum ub_wait */
    uint32_t read;              /* enum ub_read */
    uint32_t gro;               /* messages are split by UDP_GRO; the sockets have it set */
    uint32_t tail_bytes;        /* the other payload that this run sends; 0: none */
    uint64_t nap_ns;            /* of UB_WAIT_NAP; timer slack comes on top (prctl(2)) */
    const int32_t *sockets;     /* socket_count sockets like `socket`, which they replace */
    uint32_t socket_count;      /* 0: `socket` alone */
    uint32_t fault;             /* enum ub_fault */
    uint64_t fault_at_ns;       /* the time from which on it is seen between two calls */
    uint64_t epoch_ns;          /* header send times count from here, on this host's clock */
    struct ub_histogram *delay; /* each datagram of ours: from the time in its header until its call
                                   returned; NULL: none; nothing where no header is read */
    struct ub_milliseconds *milliseconds; /* received packets since epoch_ns; NULL: none */
    struct ub_log
        *log; /* every datagram of ours goes there; not where nothing is copied; NULL: no */
    uint32_t echo_every; /* headers with a sequence number that is a multiple of it return, where
                            the sockets have IP_PKTINFO or IPV6_RECVPKTINFO set from the address
                            that was sent to; 0: none */
    uint32_t timestamps; /* the sockets have SO_TIMESTAMPNS set */
    struct ub_histogram *stack; /* with timestamps: from the time in the header to the kernel's */
    struct ub_histogram *application; /* and from there until the call returned */
};

/* One writer, the loop; readable at any time; alone on its cache lines. */
struct ub_receive_stats {
    uint64_t read_packets;     /* datagrams that the calls returned */
    uint64_t received_packets; /* of this run and phase, each once */
    uint64_t received_bytes;   /* UDP payload of received_packets */
    uint64_t duplicate_packets;
    uint64_t late_packets;      /* received below the highest sequence of their flow (RFC 4737) */
    uint64_t ancient_packets;   /* below the window: late or duplicate cannot be told */
    uint64_t foreign_packets;   /* no header, another tag, or a flow number that is not ours */
    uint64_t truncated_packets; /* ours, but cut off: beyond room_bytes, alone or merged */
    uint64_t corrupt_packets;   /* our tag and flow, but not our size, or not our pattern */
    uint64_t receive_calls;
    uint64_t empty_calls; /* calls that returned without a datagram */
    uint64_t errors;
    uint64_t last_errno;
    uint64_t first_ns; /* time after the call that returned the first, the latest of ours */
    uint64_t last_ns;
    uint64_t last_cpu;      /* as in ub_send_stats */
    uint64_t read_messages; /* that the calls returned, each one skb; with gro several datagrams */
    uint64_t wait_calls;    /* epoll_wait calls, or naps */
    uint64_t unlogged_packets; /* of ours, for which the log's ring had no room */
    uint64_t echoed_packets;
    uint64_t unechoed_packets; /* that the socket did not take */
    uint64_t first_packets;    /* received by the call that first_ns is of: they came before it, and
                                  not in the span to last_ns */
    uint64_t first_bytes;
};

/* One flow at its receiver; `packets` are distinct ones, `highest` is the sequence plus 1. */
struct ub_flow_totals {
    uint64_t packets;
    uint64_t highest;
};

/* ---- the log of a receiver --------------------------------------------------------------------
 * One loop puts datagrams into a ring, one writer takes them out into files `path.0`, `path.1` ...
 * A file is a struct ub_log_head and frames: a struct ub_log_frame and so many bytes, host order.
 * logged + failed = datagrams that the ring took.
 */
struct ub_log_head {
    char magic[8];         /* "UBLOG1" and two zeros */
    uint64_t monotonic_ns; /* two clocks at one time: frames have the first, calendars the second */
    uint64_t realtime_ns;
};

struct ub_log_frame {
    uint64_t arrived_ns; /* CLOCK_MONOTONIC when its call had returned */
    uint32_t length;     /* payload on the wire */
    uint32_t bytes;      /* of it, behind this frame */
};

struct ub_log {
    uint64_t put_bytes; /* ever; by the loop */
    uint64_t reserved_put[7];
    uint64_t taken_bytes; /* ever; by the writer */
    uint64_t reserved_taken[7];
    uint8_t *ring;
    uint64_t ring_bytes; /* a power of two */
};

struct ub_log_config {
    struct ub_log *log;
    const char *path;
    uint64_t max_file_bytes; /* a file ends before the frame that would exceed it */
    uint32_t keep;           /* files, the one being written included; older ones are removed */
    uint32_t reserved;
    uint64_t drain_ns;              /* to write what is in the ring when the loop has left */
    const struct ub_control *ended; /* stop: the loop has left */
};

struct ub_log_stats {
    uint64_t logged_packets;
    uint64_t failed_packets; /* that the disk did not take */
    uint64_t logged_bytes;   /* heads and frames included */
    uint64_t log_files;      /* begun */
    uint64_t log_errors;     /* calls */
    uint64_t log_last_errno;
    uint64_t log_first_ns; /* stamps of the first and the latest logged frame */
    uint64_t log_last_ns;
    uint64_t log_first_packets; /* logged, with log_first_ns as their stamp */
};

/* ---- echoes at the sender -----------------------------------------------------------------------
 * echoes of this phase are in the histogram; whatever else comes is counted apart.
 */
struct ub_echo_config {
    const int32_t *sockets; /* socket_count sockets; they may be in use by a sending loop */
    uint32_t socket_count;
    uint32_t tag;
    uint64_t epoch_ns;
    uint64_t quiet_ns;   /* without an echo after the sending loop has left, then it leaves, too */
    uint64_t longest_ns; /* after the sending loop has left, whatever still comes */
    const struct ub_control *ended; /* stop: the sending loop has left */
    const struct ub_control *control;
    struct ub_histogram *round_trip; /* from the time in the header to the return of the call */
};

struct ub_echo_stats {
    uint64_t echo_packets;
    uint64_t echo_strangers;
    uint64_t echo_errors;
    uint64_t echo_last_errno;
};

int ub_log_write(const struct ub_log_config *config, struct ub_log_stats *stats);
int ub_echo_listen(const struct ub_echo_config *config, struct ub_echo_stats *stats);
int ub_send(const struct ub_send_config *config, struct ub_send_stats *stats);
int ub_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats);
uint64_t ub_flow_state_bytes(uint32_t flow_count, uint32_t window_words);
void ub_flow_totals_read(const struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                         struct ub_flow_totals *totals);

/* The TCP baseline: connected streams instead of datagrams; "packets" are writes of size_bytes, at
 * the receiver as many as its bytes amount to. Of the configs they look at call-independent fields
 * alone: of sending size_bytes, flow_count, sockets, rate, count, times and control; of receiving
 * sockets, socket_count, room_bytes, size_bytes and control. A broken stream ends the loop with
 * -errno; the end of any stream ends the receiving loop with 0. */
int ub_stream_send(const struct ub_send_config *config, struct ub_send_stats *stats);
int ub_stream_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats);

/* The most datagrams the kernel takes in one GSO message, or -errno where it takes none: found by
 * sending 1-byte datagrams on this connected socket, best one that is connected to itself. */
int ub_gso_max(int32_t socket);

/* The payload as every datagram carries it behind its header, from its first byte on. It depends on
 * the position alone, so that it is written once and not for each datagram. */
void ub_pattern_write(uint8_t *to, uint32_t bytes);

/* For tests: the bucket of a value. */
uint32_t ub_histogram_bucket(uint64_t value);

/* For tests: one header as bytes, and one sequence number through a flow's window.
 * ub_window_add returns 0 new, 1 new but late, 2 duplicate, 3 ancient. */
void ub_header_write(uint8_t *to, uint32_t tag, uint16_t flow, uint64_t sequence, uint64_t time_ns);
int ub_window_add(struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                  uint64_t sequence);
