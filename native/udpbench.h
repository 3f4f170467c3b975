/*
 * The native boundary: what Python may call and what both sides read.
 *
 * Rule: no directives here, because cffi parses this very text. Functions take a config and a
 * stats struct that the caller allocated, return 0 or -errno, and never print, exit, allocate
 * inside a loop, or decide what a count means. Times are CLOCK_MONOTONIC nanoseconds.
 */

/* ---- limits -----------------------------------------------------------------------------------
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
    UB_XSK_ROOM_BYTES = 256,       /* of a chunk, that the kernel keeps before a received frame:
                                      XDP_PACKET_HEADROOM */
    UB_XSK_TAKEN_FRAMES = 4096,    /* of a receiver: a full ring, and as many that are read or free,
                                      so that a slow reader never leaves the kernel without any */
    UB_LOG_BYTES_MAX = 1 << 30,    /* of a ring, a power of two */
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

/* ---- histograms and series ----------------------------------------------------------------------
 * One writer each, the loop; readable at any time. Histograms of several workers add up.
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

/* ---- datagrams --------------------------------------------------------------------------------
 * Header: tag (32 bits), flow (16), sequence number (48), time since the epoch in ns (48), all
 * big-endian; then the pattern.
 */

/* The pattern depends on the position in the payload alone, so that it is written once and not for
 * each datagram. */
void ub_pattern_write(uint8_t *to, uint32_t bytes);

/* For tests: one header as bytes. */
void ub_header_write(uint8_t *to, uint32_t tag, uint16_t flow, uint64_t sequence, uint64_t time_ns);

/* ---- sending ------------------------------------------------------------------------------------
 * intended = attempted (unlimited) or what rate and count ask for.
 * attempted = sent + eperm + econnrefused + emsgsize + other_errors; EAGAIN and ENOBUFS are retried
 * and use up no attempt. A sequence number is burnt only for a datagram the kernel took.
 * Of a GSO message the kernel takes all datagrams or none, so that a refused one counts with all of
 * them. A paced GSO message goes when its last datagram is due; it is shorter only if count or the
 * end leave less. Datagrams below UB_HEADER_BYTES carry no header, only the pattern. The time in
 * the header is when the datagram was due; with an unlimited rate, when its call began.
 */
enum ub_send_call { UB_SEND_SENDMMSG = 0, UB_SEND_SEND = 1, UB_SEND_AF_XDP = 2, UB_SEND_URING = 3 };

/* What the kernel shares of a ring (Documentation/networking/af_xdp.rst). */
struct ub_xsk_ring {
    void *mapped;
    uint64_t mapped_bytes;
    uint32_t *producer;
    uint32_t *consumer;
    uint32_t *flags;
    void *entries;
};

/* An AF_XDP socket that sends or receives; one thread uses it. */
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

/* A datagram given by the user, without our header; never written to. */
struct ub_payload {
    uint8_t *bytes;
    uint64_t size_bytes;
};

/* The ids of one flow's datagrams: by the loop that sends, and by the listener for answers. */
struct ub_ids {
    uint64_t next;         /* of the next datagram, modulo UB_IDS */
    uint64_t used[UB_IDS]; /* when the datagram was due that had an id last, twice, and 1 more while
                              its answer is awaited; 0: none had it */
};

struct ub_send_config {
    const struct ub_control *control;

    /* The way of sending. */
    uint32_t call;     /* enum ub_send_call */
    uint32_t batch;    /* messages per call at most; the rate and the duration of calls decide below
                          that; send has 1 */
    uint32_t zerocopy; /* MSG_ZEROCOPY; the sockets have SO_ZEROCOPY set */
    struct ub_xsk *xsk; /* only of af_xdp, which sends by it and not by `sockets` */

    /* Flows: arrays of flow_count elements. */
    uint32_t flow_count;
    const int32_t *sockets;  /* connected, blocking, with SO_SNDTIMEO set */
    const uint16_t *flows;   /* flow numbers for the header */
    uint64_t *sequences;     /* next sequence numbers: in and out */
    const uint8_t *headers;  /* only of af_xdp: Ethernet, IP and UDP headers of each flow, without
                                the UDP checksum */
    uint32_t header_bytes;   /* of one flow */
    uint32_t *zerocopy_next; /* numbers of the sockets' next completions: in and out, 0 for a new
                                socket; only with zerocopy */

    /* The datagrams. */
    uint32_t size_bytes;    /* UDP payload */
    uint32_t gso_segments;  /* datagrams per message (UDP_SEGMENT); 0 or 1: no GSO */
    uint32_t tail_bytes;    /* payload of a GSO message's last datagram; 0: size_bytes */
    uint32_t tag;           /* run and phase */
    uint32_t payload_count; /* the user's own datagrams, which each flow sends in turn, one a
                               message; size_bytes is then that of the longest; 0: none */
    const struct ub_payload *payloads;
    struct ub_ids **ids; /* of each flow: each of its payloads gets an id; NULL: none */
    uint32_t id_at;      /* where in the payload, 16 bits big-endian */
    uint64_t id_ns;      /* after this an id may be used again, answered or not */

    /* When and how many. */
    uint64_t epoch_ns;    /* header times count from here */
    uint64_t start_ns;    /* the loop waits for this time */
    uint64_t end_ns;      /* and leaves at this one; paced, it makes up its debt first */
    uint64_t rate_pps;    /* this worker's share; 0: unlimited */
    uint64_t bucket_ns;   /* debt that may be made up after a stall */
    uint64_t count;       /* attempts after which the loop ends, even over flows; 0: no limit */
    uint32_t pace_sleeps; /* 0: spin to each deadline, 1: sleep */

    /* What is recorded besides counts; NULL: not recorded. */
    struct ub_histogram *pacing; /* each message: how long after it was due its call began; nothing
                                    with an unlimited rate */
    struct ub_stalls *stalls;
    struct ub_milliseconds *milliseconds; /* sent packets, by the end of their call */
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
    uint64_t last_cpu;          /* CPU of the latest call, plus 1; 0: none yet */
    uint64_t sent_messages;     /* that the kernel took, each one skb until it is segmented */
    uint64_t zerocopy_messages; /* of them, completed without a copy */
    uint64_t zerocopy_copied_messages; /* of them, with a copy; the rest is not yet completed */
    uint64_t first_packets; /* paced: sent by the call that first_ns is of, which opens the span to
                               last_ns; 0 with an unlimited rate, whose span has all its calls */
    uint64_t ebusy;         /* af_xdp: of sent_packets, those that the device dropped at once */
    uint64_t refused_calls; /* af_xdp: calls with an error that takes no frame, in last_errno */
    uint64_t id_waits;      /* checks at which a flow's next id was not free */
};

int ub_send(const struct ub_send_config *config, struct ub_send_stats *stats);

/* The most datagrams the kernel takes in one GSO message, or -errno if it takes none: found by
 * sending 1-byte datagrams on this connected socket, best one that is connected to itself. */
int ub_gso_max(int32_t socket);

/* ---- receiving ----------------------------------------------------------------------------------
 * read = received + duplicate + foreign + foreign_size + truncated + corrupt + ancient; late
 * packets are received.
 */
enum ub_receive_call {
    UB_RECEIVE_RECVMMSG = 0,
    UB_RECEIVE_RECV = 1,
    UB_RECEIVE_URING = 2,
    UB_RECEIVE_AF_XDP = 3
};

/* How a receiver waits. Busy polling is blocking with SO_BUSY_POLL set on the socket: then the
 * call itself polls the device queue before it sleeps (net/core/datagram.c). */
enum ub_wait {
    UB_WAIT_BLOCK = 0, /* in the receiving call; one socket */
    UB_WAIT_EPOLL = 1, /* in epoll_wait, level-triggered, one call for each ready socket */
    UB_WAIT_SPIN = 2,  /* not at all: non-blocking calls on the sockets in turn */
    UB_WAIT_NAP = 3,   /* the same, and nap_ns of sleep after a round in which no batch was full */
    UB_WAIT_AUTO = 4,  /* naps while each brings several messages; else in the receiving call, or by
                          epoll if that call does not wait for all sockets */
};

/* What is looked at. COPY and NONE see no header: duplicate, late, ancient, foreign, corrupt and
 * the totals of the flows stay 0 and mean unknown. All datagrams of a size that this run sends are
 * received, and the others are foreign by size. */
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

struct ub_flow_state; /* opaque: one per flow, shared by every worker of the host */

struct ub_receive_config {
    const struct ub_control *control;

    /* The way of receiving, waiting and reading; each way of receiving says which waits it allows.
     */
    uint32_t call;       /* enum ub_receive_call */
    uint32_t wait;       /* enum ub_wait */
    uint32_t read;       /* enum ub_read */
    uint32_t batch;      /* messages per call at most; recv has 1 */
    uint32_t room_bytes; /* buffer offered per message; with gro 65535 holds any */
    struct ub_xsk *xsk;  /* only of af_xdp, whose socket is the one in `sockets` */
    uint64_t nap_ns;     /* of UB_WAIT_NAP and _AUTO; timer slack comes on top (prctl(2)) */

    /* Sockets: blocking, with SO_RCVTIMEO set so that stop is seen. */
    const int32_t *sockets;
    uint32_t socket_count;
    uint32_t gro;        /* they have UDP_GRO set: messages hold several datagrams */
    uint32_t timestamps; /* they have SO_TIMESTAMPNS set */

    /* Which datagrams are ours. */
    uint32_t tag;                /* those of another tag are foreign */
    uint32_t size_bytes;         /* payload that this run sends: any other size is corrupt */
    uint32_t tail_bytes;         /* the other payload that this run sends; 0: none */
    uint32_t flow_count;         /* flow numbers are 0 .. flow_count - 1 */
    uint32_t window_words;       /* per flow, a power of two */
    struct ub_flow_state *flows; /* ub_flow_state_bytes(flow_count, window_words), zeroed */

    /* Actions besides receiving. */
    uint64_t work_ns;     /* CPU time spent per datagram: a slow reader; 0: none */
    uint32_t echo_every;  /* headers with a sequence number that is a multiple of it are sent back,
                             from the address they were sent to if the sockets have IP_PKTINFO or
                             IPV6_RECVPKTINFO set; 0: none */
    uint32_t fault;       /* enum ub_fault */
    uint64_t fault_at_ns; /* the fault begins at the first look, between two calls, after this */

    /* What is recorded besides counts; NULL: not recorded. */
    uint64_t epoch_ns;          /* header times count from here, on this host's clock */
    struct ub_histogram *delay; /* each datagram of ours: from the time in its header until its call
                                   returned; nothing if no header is read */
    struct ub_histogram *stack; /* with timestamps: from the time in the header to the kernel's */
    struct ub_histogram *application;     /* and from there until the call returned */
    struct ub_milliseconds *milliseconds; /* received packets since epoch_ns */
    struct ub_log *log; /* every datagram of ours; only with a way of reading that copies */
};

/* One writer, the loop; readable at any time; alone on its cache lines. */
struct ub_receive_stats {
    uint64_t read_packets;     /* datagrams that the calls returned */
    uint64_t received_packets; /* of this run and phase, without duplicates */
    uint64_t received_bytes;   /* UDP payload of received_packets */
    uint64_t duplicate_packets;
    uint64_t late_packets;      /* received below the highest sequence of their flow (RFC 4737) */
    uint64_t ancient_packets;   /* below the window: late and duplicate look alike */
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
    uint64_t foreign_size_packets; /* COPY and NONE: not of a size that this run sends */
    uint64_t standstills;   /* times of more than UB_STANDSTILL_NS, naps left out, in which the loop
                               neither came back from a call nor worked, and datagrams waited then */
    uint64_t standstill_ns; /* of them all */
    uint64_t drained_first_ns;      /* when no datagram was left for the first time, */
    uint64_t drained_first_packets; /* and what had been received by then */
    uint64_t drained_first_bytes;
    uint64_t drained_last_ns; /* when none was left for the last time before more came */
    uint64_t drained_last_packets;
    uint64_t drained_last_bytes;
};

int ub_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats);

/* One flow at its receiver; `packets` are distinct ones, `highest` is the sequence plus 1. */
struct ub_flow_totals {
    uint64_t packets;
    uint64_t highest;
};

/* 0 if the arguments make no window. */
uint64_t ub_flow_state_bytes(uint32_t flow_count, uint32_t window_words);
void ub_flow_totals_read(const struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                         struct ub_flow_totals *totals);

/* For tests: one sequence number through a flow's window: 0 new, 1 new but late, 2 duplicate,
 * 3 ancient; -EINVAL for a window that its check refuses. */
int ub_window_add(struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                  uint64_t sequence);

/* ---- the TCP baseline ---------------------------------------------------------------------------
 * Connected streams instead of datagrams; "packets" are writes of size_bytes, at the receiver as
 * many as its bytes amount to. Used of the configs: for sending control, sockets, flow_count,
 * size_bytes, rate, count and times; for receiving control, sockets, socket_count, room_bytes and
 * size_bytes. A broken stream ends the loop with -errno; the end of any stream ends the receiving
 * loop with 0.
 */
int ub_stream_send(const struct ub_send_config *config, struct ub_send_stats *stats);
int ub_stream_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats);

/* ---- a receiver's log ---------------------------------------------------------------------------
 * The loop puts datagrams into a ring, a writer takes them out into files `name.0`, `name.1` ...
 * A file is a struct ub_log_head and frames: a struct ub_log_frame and its bytes, host order.
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
    const struct ub_control *ended; /* stop: the loop has left */
    uint64_t drain_ns;              /* to write what is in the ring when the loop has left */

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
    uint64_t log_first_packets; /* logged, with log_first_ns as their stamp */
};

int ub_log_write(const struct ub_log_config *config, struct ub_log_stats *stats);

/* ---- echoes at the sender -----------------------------------------------------------------------
 * Echoes of this phase are in the histogram; anything else that arrives is counted apart.
 */
struct ub_echo_config {
    const struct ub_control *control;
    const struct ub_control *ended; /* stop: the sending loop has left */
    const int32_t *sockets;         /* socket_count sockets; they may be in use by a sending loop */
    uint32_t socket_count;
    uint32_t tag;
    uint64_t epoch_ns;
    uint64_t quiet_ns;   /* once the sending loop has left, it leaves after this without an echo */
    uint64_t longest_ns; /* and after this, even if echoes still come */
    struct ub_histogram *round_trip; /* from the time in the header to the return of the call */
};

struct ub_echo_stats {
    uint64_t echo_packets;
    uint64_t echo_strangers;
    uint64_t echo_errors;
    uint64_t echo_last_errno;
};

int ub_echo_listen(const struct ub_echo_config *config, struct ub_echo_stats *stats);

/* ---- answers at the sender ----------------------------------------------------------------------
 * What a program of the user's sends back: each datagram that comes is an answer. With ids it
 * belongs to the datagram of its flow whose id it has, once; otherwise it is counted without a
 * round trip.
 */
struct ub_answers_config {
    const struct ub_control *control; /* stop: nothing was sent, and it leaves at once */
    const struct ub_control *ended;   /* stop: the answering program has read everything */
    const int32_t *sockets;           /* socket_count sockets; a sending loop uses them, too */
    uint32_t socket_count;
    const struct ub_send_stats *sent; /* of that loop: with an answer for each datagram the listener
                                         leaves, once all was read */
    uint64_t quiet_ns;                /* else after this without an answer */
    uint64_t longest_ns;              /* and after this, even if answers still come */
    struct ub_ids **ids;              /* of each socket's flow; NULL: answers have none */
    uint32_t id_at;
    struct ub_histogram *round_trip; /* from when the datagram was due to the return of the call */
};

struct ub_answers_stats {
    uint64_t answered_packets;
    uint64_t unmatched_packets; /* of them with ids: those that no datagram awaits */
    uint64_t answered_bytes;    /* UDP payload */
    uint64_t answer_first_ns;   /* time after the call that returned the first, the latest */
    uint64_t answer_last_ns;
    uint64_t answer_first_packets; /* by the call that answer_first_ns is of */
    uint64_t answer_errors;
    uint64_t answer_last_errno;
};

int ub_answers_listen(const struct ub_answers_config *config, struct ub_answers_stats *stats);

/* ---- what a config is refused for ---------------------------------------------------------------
 * A loop returns -EINVAL for a config that its check refuses, and does nothing. A check returns
 * "field: what it may be", where UB_ names stand for their values; NULL: none is refused.
 */
const char *ub_send_check(const struct ub_send_config *config);
const char *ub_receive_check(const struct ub_receive_config *config);
const char *ub_stream_send_check(const struct ub_send_config *config);
const char *ub_stream_receive_check(const struct ub_receive_config *config);
const char *ub_log_write_check(const struct ub_log_config *config);
const char *ub_echo_listen_check(const struct ub_echo_config *config);
const char *ub_answers_listen_check(const struct ub_answers_config *config);
const char *ub_window_check(const struct ub_flow_state *flows, uint32_t window_words);

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
