/*
 * Echoed headers: the receiver's reply, and the sender's listener.
 *
 * Owns what an echo is. Must never send to any address but the source of a datagram of ours, from
 * any address but the one it was sent to, nor count as a datagram of the run: echoes are not in the
 * ledger.
 */
#include "read.h"

#include "listen.h"
#include "series.h"

#include <netinet/in.h>

enum { ECHOES_PER_TURN = 64 };

/* Sets the source address of a message, which has room for the control message. */
static void put_source(struct msghdr *message, int level, int type, const void *info,
                       size_t bytes) {
    message->msg_controllen = CMSG_SPACE(bytes);
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = level;
    header->cmsg_type = type;
    header->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(header), info, bytes);
}

/* The socket is bound to every address, and the sender's is connected to one and hears no other: an
 * answer leaves from the address the request was sent to, by the interface that leads back. If the
 * kernel did not say which that was, it chooses. */
static void answer_from(struct msghdr *answer, const struct msghdr *request) {
    struct msghdr *head = (struct msghdr *)request;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(head); header != NULL;
         header = CMSG_NXTHDR(head, header)) {
        if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo arrived, info = {0};
            memcpy(&arrived, CMSG_DATA(header), sizeof arrived);
            info.ipi_spec_dst = arrived.ipi_addr;
            put_source(answer, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
        } else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo info;
            memcpy(&info, CMSG_DATA(header), sizeof info);
            info.ipi6_ifindex = 0;
            put_source(answer, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
        }
    }
}

void ub_echo(struct ub_tally *tally, const uint8_t *header) {
    const struct msghdr *request = &tally->message->msg_hdr;
    _Alignas(struct cmsghdr) uint8_t control[CMSG_SPACE(sizeof(struct in6_pktinfo))] = {0};
    struct iovec vector = {(void *)header, UB_HEADER_BYTES};
    struct msghdr answer = {.msg_name = request->msg_name,
                            .msg_namelen = request->msg_namelen,
                            .msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = control};
    answer_from(&answer, request);
    ssize_t sent = sendmsg(tally->socket, &answer, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        tally->unechoed++;
    else
        tally->echoed++;
}

static void account_echo(const struct ub_echo_config *config, struct ub_echo_stats *stats,
                         const uint8_t *bytes, ssize_t length) {
    struct ub_header header;
    uint64_t apart_ns = ub_now_ns() - config->epoch_ns;
    if (length == UB_HEADER_BYTES) {
        ub_header_read(bytes, &header);
        if (header.tag == config->tag) {
            apart_ns -= ub_header_time_ns(bytes);
            ub_histogram_add(config->round_trip, ub_signed48(apart_ns), 1);
            ub_add(&stats->echo_packets, 1);
            return;
        }
    }
    ub_add(&stats->echo_strangers, 1);
}

/* The buffers of a listener. */
struct ear {
    const struct ub_echo_config *config;
    struct ub_echo_stats *stats;
};

/* Reads what is queued in a socket, up to a limit; returns whether there was an echo. */
static int read_echoes(void *subject, uint32_t index) {
    const struct ear *ear = subject;
    uint8_t bytes[UB_HEADER_BYTES + 1];
    for (int turn = 0; turn < ECHOES_PER_TURN; turn++) {
        ssize_t length =
            recv(ear->config->sockets[index], bytes, sizeof bytes, MSG_DONTWAIT | MSG_TRUNC);
        if (length < 0 && (errno == EAGAIN || errno == EINTR))
            return turn != 0;
        if (length >= 0) {
            account_echo(ear->config, ear->stats, bytes, length);
            continue;
        }
        ub_set(&ear->stats->echo_last_errno, (uint64_t)errno);
        ub_add(&ear->stats->echo_errors, 1);
    }
    return 1;
}

static struct ub_listener listener_of(const struct ub_echo_config *config) {
    return (struct ub_listener){.sockets = config->sockets,
                                .socket_count = config->socket_count,
                                .control = config->control,
                                .ended = config->ended,
                                .quiet_ns = config->quiet_ns,
                                .longest_ns = config->longest_ns,
                                .read = read_echoes};
}

const char *ub_echo_listen_check(const struct ub_echo_config *config) {
    if (config == NULL)
        return "config: not NULL";
    const struct ub_listener listener = listener_of(config);
    const char *refused = ub_listener_check(&listener);
    if (refused != NULL)
        return refused;
    if (config->round_trip == NULL)
        return "round_trip: not NULL";
    return NULL;
}

int ub_echo_listen(const struct ub_echo_config *config, struct ub_echo_stats *stats) {
    if (stats == NULL || ub_echo_listen_check(config) != NULL)
        return -EINVAL;
    struct ear ear = {.config = config, .stats = stats};
    struct ub_listener listener = listener_of(config);
    listener.subject = &ear;
    return ub_listen(&listener);
}
