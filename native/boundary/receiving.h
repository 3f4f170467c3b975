/*
 * Receiving: what is asked for, and what came of it.
 *
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
 * the totals of the flows stay 0 and mean unknown. They receive all datagrams that have a size of
 * this run, and the others are foreign by size; with a header, one of ours is corrupt then. */
enum ub_read {
    UB_READ_HEADER = 0,
    UB_READ_COPY = 1, /* the payload is copied and not looked at */
    UB_READ_NONE = 2, /* MSG_TRUNC into no room: not even copied; truncated is then unknown, too */
    UB_READ_VERIFY = 3, /* header, and every byte behind it against ub_pattern_write */
    UB_READ_IPERF3 = 4, /* the header of an iperf3 client, whose streams are the sockets in turn:
                           what has none is foreign, and every length is one of this run */
};

enum ub_fault {
    UB_FAULT_NONE = 0,
    UB_FAULT_HANG = 1, /* sleeps until stop and reads nothing */
    UB_FAULT_EXIT = 2, /* returns; a reuseport member leaves its group when its socket is closed */
};

/* A stream of an iperf3 client, as its own server would count it; the window is exact. */
struct ub_iperf3_stream {
    uint64_t read_packets;   /* datagrams with a counter, repeated ones included */
    uint64_t read_bytes;     /* their UDP payload */
    uint64_t hellos;         /* datagrams of 4 bytes: the greeting, repeated */
    uint64_t highest;        /* the highest counter so far, continued beyond 32 bits */
    uint64_t gap_packets;    /* counters left out, less one for each packet that came behind */
    uint64_t behind_packets; /* packets whose counter is not above the highest */
    uint64_t jitter_16th_ns; /* 16 times the jitter of RFC 3550 */
    uint64_t transit_ns;     /* of the latest packet; a difference of two clocks, which may wrap */
};

struct ub_flow_state; /* opaque: one per flow, shared by every worker of the host */

struct ub_receive_config {
    const struct ub_control *control;

    /* The way of receiving, waiting and reading; each way of receiving says which waits it allows.
     */
    uint32_t call;        /* enum ub_receive_call */
    uint32_t wait;        /* enum ub_wait */
    uint32_t read;        /* enum ub_read */
    uint32_t batch;       /* messages per call at most; recv has 1 */
    uint32_t room_bytes;  /* buffer offered per message; with gro 65535 holds any */
    struct ub_xsk *xsk;   /* only of af_xdp, whose socket is the one in `sockets` */
    uint64_t nap_ns;      /* of UB_WAIT_NAP and _AUTO; timer slack comes on top (prctl(2)) */
    uint64_t nap_most_ns; /* of UB_WAIT_AUTO: its naps are as long as this, or as nap_messages, a
                             part of a receive buffer, take to come; 0: all take nap_ns */
    uint32_t nap_messages;

    /* Sockets: blocking, with SO_RCVTIMEO set so that stop is seen. */
    const int32_t *sockets;
    uint32_t socket_count;
    uint32_t gro;        /* they have UDP_GRO set: messages hold several datagrams */
    uint32_t timestamps; /* they have SO_TIMESTAMPNS set */

    /* Which datagrams are ours. */
    uint32_t tag;                        /* those of another tag are foreign */
    const struct ub_datagram *datagrams; /* that this run sends, the most frequent first */
    uint32_t datagram_count;
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
    struct ub_iperf3_stream *streams; /* UB_READ_IPERF3: of each socket */
    uint32_t wide_counters;           /* the same: of 64 bits */
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
    uint64_t corrupt_packets;   /* our tag and flow, but none of our sizes, or not our pattern */
    uint64_t receive_calls;
    uint64_t empty_calls; /* calls that returned without a datagram */
    uint64_t errors;
    uint64_t last_errno;
    uint64_t first_ns;         /* time after the call that returned the first of ours */
    uint64_t last_ns;          /* and after the one that returned the latest of ours */
    uint64_t last_cpu;         /* as in ub_send_stats */
    uint64_t read_messages;    /* messages that the calls returned, each one skb; with gro each may
                                  hold several datagrams */
    uint64_t wait_calls;       /* epoll_wait calls, or naps */
    uint64_t unlogged_packets; /* of ours, for which the log's ring had no room */
    uint64_t echoed_packets;
    uint64_t unechoed_packets; /* echoes that the socket did not take, or not of the flow's first
                                  source */
    uint64_t first_packets;    /* received by the call of first_ns: they came before it, not in the
                                  span to last_ns */
    uint64_t first_bytes;      /* and their bytes */
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
const char *ub_receive_check(const struct ub_receive_config *config);

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
const char *ub_window_check(const struct ub_flow_state *flows, uint32_t window_words);

/* The other end of the TCP baseline; "packets" are as many writes as its bytes amount to. Used of
 * the config: control, sockets, socket_count, room_bytes, datagrams. The end of any stream ends it.
 */
int ub_stream_receive(const struct ub_receive_config *config, struct ub_receive_stats *stats);
const char *ub_stream_receive_check(const struct ub_receive_config *config);
