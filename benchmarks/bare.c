/*
 * What remains of udpbench's loops without their accounting: the same calls on the same buffers.
 *
 * No header is written or read, no window kept, no clock asked, nothing counted but messages. Only
 * benchmarks/ways.py compiles and runs this, in the built-in lab; it is no part of the product.
 *
 *     bare send ADDRESS PORT SIZE SEGMENTS BATCH SECONDS
 *     bare receive PORT ROOM GRO BATCH SECONDS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#define UDP_GRO 104
#endif

enum { CONTROL_BYTES = CMSG_SPACE(sizeof(int)), LINE_BYTES = 64, SO_RCVBUFFORCED = 33 };
static const int buffer_bytes = 4 * 1024 * 1024;

struct box {
    struct mmsghdr *messages;
    struct iovec *vectors;
    uint8_t *controls;
};

/* Messages with room each, and a control message where asked for. */
static struct box make(unsigned batch, size_t bytes, int controls) {
    size_t stride = (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    uint8_t *room = aligned_alloc(LINE_BYTES, batch * stride);
    struct box box = {calloc(batch, sizeof *box.messages), calloc(batch, sizeof *box.vectors),
                      calloc(batch, CONTROL_BYTES)};
    memset(room, 1, batch * stride);
    for (unsigned index = 0; index < batch; index++) {
        struct msghdr *message = &box.messages[index].msg_hdr;
        box.vectors[index] = (struct iovec){room + index * stride, bytes};
        message->msg_iov = &box.vectors[index];
        message->msg_iovlen = 1;
        message->msg_control = controls ? box.controls + (size_t)index * CONTROL_BYTES : NULL;
        message->msg_controllen = controls ? CONTROL_BYTES : 0;
    }
    return box;
}

static void segment(struct msghdr *message, uint16_t bytes) {
    message->msg_controllen = CMSG_SPACE(sizeof bytes);
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof bytes);
    memcpy(CMSG_DATA(header), &bytes, sizeof bytes);
}

static void send_all(char **words) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
    unsigned size = (unsigned)atoi(words[2]), segments = (unsigned)atoi(words[3]);
    unsigned batch = (unsigned)atoi(words[4]);
    int made = socket(AF_INET, SOCK_DGRAM, 0);
    if (inet_pton(AF_INET, words[0], &to.sin_addr) != 1 ||
        connect(made, (struct sockaddr *)&to, sizeof to) < 0)
        exit(1);
    struct box box = make(batch, (size_t)size * segments, segments > 1);
    for (unsigned index = 0; segments > 1 && index < batch; index++)
        segment(&box.messages[index].msg_hdr, (uint16_t)size);
    for (;;)
        (void)sendmmsg(made, box.messages, batch, 0);
}

static void receive_all(char **words) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[0]))};
    size_t room = (size_t)atoi(words[1]);
    int gro = atoi(words[2]);
    unsigned batch = (unsigned)atoi(words[3]);
    int made = socket(AF_INET, SOCK_DGRAM, 0);
    struct timeval timeout = {0, 50000};
    if (setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) < 0 ||
        setsockopt(made, SOL_SOCKET, SO_RCVBUFFORCED, &buffer_bytes, sizeof buffer_bytes) < 0 ||
        (gro && setsockopt(made, SOL_UDP, UDP_GRO, &gro, sizeof gro) < 0) ||
        bind(made, (struct sockaddr *)&own, sizeof own) < 0)
        exit(1);
    struct box box = make(batch, room, gro);
    for (;;) {
        int messages = recvmmsg(made, box.messages, batch, MSG_TRUNC | MSG_WAITFORONE, NULL);
        for (int index = 0; gro && index < messages; index++)
            box.messages[index].msg_hdr.msg_controllen = CONTROL_BYTES;
    }
}

int main(int count, char **words) {
    if (count == 8 && strcmp(words[1], "send") == 0) {
        alarm((unsigned)atoi(words[7]));
        send_all(words + 2);
    }
    if (count == 7 && strcmp(words[1], "receive") == 0) {
        alarm((unsigned)atoi(words[6]));
        receive_all(words + 2);
    }
    return 2;
}
