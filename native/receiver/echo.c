/*
 * Echoed headers, for the sender's listener.
 *
 * Owns what an echo is. Must never send to any address but the first source of a flow, from any
 * address but the one it was sent to, nor count as a datagram of the run: echoes are not in the
 * ledger.
 */
#include "read.h"

#include <netinet/in.h>

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

/* Whether a word is this value, or was none before: several workers may be the first at once. */
static int is_kept(uint64_t *word, uint64_t value) {
    uint64_t known = 0;
    return __atomic_compare_exchange_n(word, &known, value, 0, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED) ||
           known == value;
}

/* Whoever reads a datagram on its way knows tag and flow, and could have its echo sent anywhere.
 * What comes first is the sender's, whose address a router in between may have replaced. */
static int is_from_sender(struct ub_flow_state *flow, const struct msghdr *request) {
    const struct sockaddr *name = request->msg_name;
    uint64_t address[2] = {0}, port = UINT64_C(1) << 16;
    if (name->sa_family == AF_INET) {
        const struct sockaddr_in *four = request->msg_name;
        memcpy(address, &four->sin_addr, sizeof four->sin_addr);
        port |= four->sin_port;
    } else if (name->sa_family == AF_INET6) {
        const struct sockaddr_in6 *six = request->msg_name;
        memcpy(address, &six->sin6_addr, sizeof six->sin6_addr);
        port |= six->sin6_port;
    }
    return is_kept(&flow->source[0], address[0]) && is_kept(&flow->source[1], address[1]) &&
           is_kept(&flow->source[2], port);
}

void ub_echo(struct ub_tally *tally, const uint8_t *header, uint32_t flow) {
    const struct ub_receive_config *config = tally->config;
    const struct msghdr *request = &tally->message->msg_hdr;
    if (!is_from_sender(ub_flow_state_at(config->flows, config->window_words, flow), request)) {
        tally->unechoed++;
        return;
    }
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
