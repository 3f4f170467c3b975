/*
 * The ways of reading: accounting for what one call returned.
 *
 * Owns the tally of a call, and what a datagram leaves besides its count (log.c, echo.c, stamp.c).
 */
#ifndef UB_READ_H
#define UB_READ_H

#include "inbox.h"
#include "window.h"

/* Datagrams of the usual size, each the next of its flow, in one word of its window; the first is
 * accounted for, the others not yet. */
struct ub_streak {
    uint64_t next;    /* flow and sequence number, as in the header */
    uint64_t time_ns; /* of the latest */
    uint32_t delayed; /* with this time, whose delay is not yet noted */
    uint32_t packets; /* not yet accounted for */
    uint32_t left;    /* that may follow; 0: no streak */
};

/* The account of one call. */
struct ub_tally {
    const struct ub_receive_config *config;
    uint32_t usual_bytes;   /* size of the first datagram of the config */
    const uint8_t *pattern; /* of the longest datagram */
    struct ub_run run;
    struct ub_streak streak;
    uint32_t notes_each; /* log, echo or timestamps: something is recorded of each datagram */
    struct ub_arrivals arrivals;
    uint64_t read;
    uint64_t foreign;
    uint64_t foreign_size;
    uint64_t truncated;
    uint64_t corrupt;
    uint64_t since_epoch_ns;       /* when the call had returned */
    uint64_t realtime_ahead_ns;    /* of CLOCK_MONOTONIC; with timestamps */
    uint64_t arrived_ns;           /* since the epoch; of a way that dates */
    uint64_t dated;                /* of arrivals.received, that are in their milliseconds */
    const struct mmsghdr *message; /* that the datagram came in */
    int socket;
    uint64_t unlogged;
    uint64_t echoed;
    uint64_t unechoed;
};

struct ub_read_way {
    /* Counts every datagram of the first `messages` messages. */
    void (*account)(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally);
    uint32_t sees_header;
    uint32_t copied_bytes; /* of each message at most; 0: nothing is copied */
    uint32_t stamps;       /* it has a use for the kernel's times of arrival */
    uint32_t dates;        /* it puts what it receives into milliseconds itself */
};

enum { UB_IPERF3_BYTES = 16 }; /* of the longest header of an iperf3 client */
void ub_read_iperf3(const struct ub_inbox *inbox, uint32_t messages, struct ub_tally *tally);

/* NULL: no such way. */
const struct ub_read_way *ub_read_way_of(uint32_t read);

/* ---- what is recorded besides counts, if configured ------------------------------------------ */

int ub_log_valid(const struct ub_log *log);
/* Whether the ring had room for the frame. */
int ub_log_put(struct ub_log *log, const struct ub_log_frame *frame, const uint8_t *bytes);
void ub_echo(struct ub_tally *tally, const uint8_t *header, uint32_t flow);
uint64_t ub_stamp_ns(const struct mmsghdr *message);
void ub_note_stamp(const struct ub_tally *tally, const uint8_t *header);

#endif
