/*
 * The kernel's own time of a datagram's arrival, which splits its delay in two.
 *
 * Owns the reading of SO_TIMESTAMPNS. Must never replace the delay itself, which needs no kernel.
 */
#include "read.h"

#include "series.h"

/* The stamp is of CLOCK_REALTIME, taken in netif_rx or GRO (net/core/dev.c, net_timestamp_check),
 * one for each skb. 0 if the message has none. */
uint64_t ub_stamp_ns(const struct mmsghdr *message) {
    struct msghdr *head = (struct msghdr *)&message->msg_hdr;
    struct timespec stamp = {0};
    for (struct cmsghdr *header = CMSG_FIRSTHDR(head); header != NULL;
         header = CMSG_NXTHDR(head, header))
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_TIMESTAMPNS)
            memcpy(&stamp, CMSG_DATA(header), sizeof stamp);
    return (uint64_t)stamp.tv_sec * UB_SECOND_NS + (uint64_t)stamp.tv_nsec;
}

void ub_note_stamp(const struct ub_tally *tally, const uint8_t *header) {
    const struct ub_receive_config *config = tally->config;
    uint64_t stamp = ub_stamp_ns(tally->message);
    if (stamp == 0)
        return;
    uint64_t stamped_ns = stamp - tally->realtime_ahead_ns - config->epoch_ns;
    uint64_t stack_ns = stamped_ns - ub_header_time_ns(header);
    ub_histogram_add(config->stack, ub_signed48(stack_ns), 1);
    ub_histogram_add(config->application, (int64_t)(tally->since_epoch_ns - stamped_ns), 1);
}
