/*
 * Sending: what is asked for, and what came of it.
 *
 * intended = attempted (unlimited) or what rate and count ask for.
 * attempted = sent + eperm + econnrefused + emsgsize + other_errors; EAGAIN and ENOBUFS are retried
 * and use up no attempt. A sequence number is burnt only for a datagram the kernel took.
 * Of a GSO message the kernel takes all datagrams or none, so that a refused one counts with all of
 * them. A paced GSO message goes when its last datagram is due; it is shorter only if count or the
 * end leave less. Datagrams below UB_HEADER_BYTES carry no header, only the pattern. The time in
 * the header is when the datagram was due; with an unlimited rate, when its call began.
 */
enum ub_send_call { UB_SEND_SENDMMSG = 0, UB_SEND_SEND = 1, UB_SEND_AF_XDP = 2, UB_SEND_URING = 3 };

/* The ids of one flow's datagrams: by the loop that sends, and by the listener for answers. */
struct ub_ids {
    uint64_t next;         /* of the next datagram, modulo UB_IDS */
    uint64_t used[UB_IDS]; /* by id: twice the time at which the last datagram with it was due, plus
                              1 while its answer is awaited; 0: no datagram had it */
};

struct ub_send_config {
    const struct ub_control *control;

    /* The way of sending. */
    uint32_t call;      /* enum ub_send_call */
    uint32_t batch;     /* most messages per call, of send 1; the rate and the duration of calls may
                           make it fewer */
    uint32_t zerocopy;  /* MSG_ZEROCOPY; the sockets have SO_ZEROCOPY set */
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
    const struct ub_datagram *datagrams; /* each flow sends them in turn, by sequence number */
    uint32_t datagram_count;
    uint32_t gso_segments; /* datagrams per message (UDP_SEGMENT); 0 or 1: no GSO. The last of a
                              message is like the last in `datagrams`, the others like the first */
    uint32_t tag;          /* run and phase */
    struct ub_ids **ids;   /* of each flow: each datagram of the user's gets an id; NULL: none */
    uint32_t id_at;        /* where in a datagram the id lies, 16 bits big-endian */
    uint64_t id_ns;        /* after this an id may be used again, answered or not */

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
    uint64_t id_waits;      /* how often a flow's next id was not free */
};

int ub_send(const struct ub_send_config *config, struct ub_send_stats *stats);
const char *ub_send_check(const struct ub_send_config *config);

/* The TCP baseline: connected streams instead of datagrams; "packets" are writes as long as the
 * first datagram. Used of the config: control, sockets, flow_count, datagrams, rate, count, times.
 * A broken stream ends the loop, at either end, with -errno. */
int ub_stream_send(const struct ub_send_config *config, struct ub_send_stats *stats);
const char *ub_stream_send_check(const struct ub_send_config *config);
