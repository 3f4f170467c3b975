/*
 * Random datagrams through the reader of iperf3's header; built with ASan and UBSan by the test.
 *
 * Messages are as the kernel returns them: a length on the wire, and as much of it as is copied of
 * each, at the very end of an allocation, so that a byte too far is seen. Prints how many
 * counted as what; fails unless each counted once.
 */
#include "receiver/read.h"

#include <stdio.h>
#include <stdlib.h>

enum { MESSAGES = 16, ROOM = 64, STREAMS = 3, WORDS = 64 };

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

static uint8_t *datagram(uint32_t copied, uint64_t counter, uint32_t wide) {
    uint8_t *bytes = malloc(copied != 0 ? copied : 1);
    if (bytes == NULL)
        exit(1);
    for (uint32_t at = 0; at < copied; at++)
        bytes[at] = (uint8_t)draw(256);
    if (draw(4) == 0)
        return bytes;
    uint64_t low = htobe32((uint32_t)counter), high = htobe32((uint32_t)(counter >> 32));
    uint32_t first = (uint32_t)(wide ? high : low), second = (uint32_t)low;
    if (copied >= 12)
        memcpy(bytes + 8, &first, 4);
    if (copied >= 16 && wide)
        memcpy(bytes + 12, &second, 4);
    return bytes;
}

int main(int count, char **words) {
    uint64_t inputs = count > 1 ? strtoull(words[1], NULL, 10) : 100000, sums[5] = {0}, read = 0;
    state = count > 2 ? strtoull(words[2], NULL, 10) | 1 : 88172645463325252u;
    struct ub_flow_state *flows = calloc(1, ub_flow_state_bytes(STREAMS, WORDS));
    struct ub_histogram *application = calloc(1, sizeof *application);
    struct ub_milliseconds *milliseconds = calloc(1, sizeof *milliseconds);
    struct ub_iperf3_stream streams[STREAMS] = {0};
    struct mmsghdr messages[MESSAGES] = {0};
    struct iovec vectors[MESSAGES];
    union {
        char bytes[CMSG_SPACE(sizeof(struct timespec))];
        struct cmsghdr align;
    } control = {0};
    int32_t sockets[STREAMS] = {7, 9, 11};
    struct ub_datagram sizes = {NULL, 48};
    if (flows == NULL || application == NULL || milliseconds == NULL)
        return 1;
    for (uint64_t done = 0; done < inputs; done += MESSAGES) {
        uint32_t wide = draw(2), stream = draw(STREAMS);
        struct ub_receive_config config = {.datagrams = &sizes,
                                           .datagram_count = 1,
                                           .sockets = sockets,
                                           .socket_count = STREAMS,
                                           .room_bytes = ROOM,
                                           .timestamps = 1,
                                           .flows = flows,
                                           .window_words = WORDS,
                                           .flow_count = STREAMS,
                                           .application = application,
                                           .milliseconds = milliseconds,
                                           .streams = streams,
                                           .wide_counters = wide};
        struct ub_inbox inbox = {.messages = messages, .vectors = vectors};
        struct ub_tally tally = {.config = &config,
                                 .usual_bytes = 48,
                                 .since_epoch_ns = draw(1 << 30),
                                 .realtime_ahead_ns = state,
                                 .socket = sockets[stream]};
        for (int index = 0; index < MESSAGES; index++) {
            uint32_t length = draw(3) ? 48 : draw(90);
            uint64_t near = streams[stream].highest + draw(70) - 35;
            uint32_t copied = length < UB_IPERF3_BYTES ? length : UB_IPERF3_BYTES;
            vectors[index].iov_base = datagram(copied, draw(9) ? near : state, wide);
            messages[index].msg_len = length;
            struct msghdr *head = &messages[index].msg_hdr;
            head->msg_control = draw(3) ? control.bytes : NULL;
            head->msg_controllen = head->msg_control != NULL ? sizeof control.bytes : 0;
            if (head->msg_control == NULL)
                continue;
            struct timespec stamp = {(time_t)(state >> 33), (long)draw(1000000000)};
            struct cmsghdr *first = CMSG_FIRSTHDR(head);
            *first = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof stamp),
                                      .cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_TIMESTAMPNS};
            memcpy(CMSG_DATA(first), &stamp, sizeof stamp);
        }
        ub_read_iperf3(&inbox, MESSAGES, &tally);
        ub_run_flush(&tally.run, WORDS, &tally.arrivals);
        for (int index = 0; index < MESSAGES; index++)
            free(vectors[index].iov_base);
        read += tally.read;
        sums[0] += tally.arrivals.received;
        sums[1] += tally.arrivals.duplicate;
        sums[2] += tally.arrivals.ancient;
        sums[3] += tally.foreign;
        sums[4] += tally.truncated;
    }
    uint64_t dated = 0;
    for (int at = 0; at < UB_MILLISECONDS; at++)
        dated += milliseconds->packets[at];
    free(flows);
    free(application);
    free(milliseconds);
    printf("%llu received, %llu duplicate, %llu ancient, %llu foreign, %llu truncated\n",
           (unsigned long long)sums[0], (unsigned long long)sums[1], (unsigned long long)sums[2],
           (unsigned long long)sums[3], (unsigned long long)sums[4]);
    if (dated != sums[0])
        return 3;
    return read == sums[0] + sums[1] + sums[2] + sums[3] + sums[4] ? 0 : 2;
}
