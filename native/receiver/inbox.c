/*
 * The buffers for messages that a receiver offers to the kernel.
 */
#include "inbox.h"

#include <netinet/in.h>
#include <stdlib.h>

/* UDP_GRO, a time stamp, and the address that a datagram was sent to. */
enum {
    CONTROL_BYTES = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct timespec)) +
    CMSG_SPACE(sizeof(struct in6_pktinfo))
};
enum { NAME_BYTES = sizeof(struct sockaddr_in6) };

static int allocated(const struct ub_inbox *inbox, int controls, int names) {
    return inbox->messages != NULL && inbox->vectors != NULL && inbox->room != NULL &&
           (!controls || inbox->controls != NULL) && (!names || inbox->names != NULL);
}

int ub_inbox_prepare(struct ub_inbox *inbox, const struct ub_receive_config *config, uint32_t batch,
                     uint32_t room_bytes) {
    size_t stride_bytes = ub_lines_bytes(room_bytes);
    int names = config->echo_every != 0, controls = config->gro || config->timestamps || names;
    *inbox = (struct ub_inbox){.batch = batch, .room_bytes = room_bytes};
    inbox->messages = ub_allocate(batch * sizeof *inbox->messages);
    inbox->vectors = ub_allocate(batch * sizeof *inbox->vectors);
    inbox->room = ub_allocate(batch * stride_bytes);
    if (controls)
        inbox->controls = ub_allocate((size_t)batch * CONTROL_BYTES);
    if (names)
        inbox->names = ub_allocate((size_t)batch * NAME_BYTES);
    if (!allocated(inbox, controls, names))
        return -ENOMEM;
    for (uint32_t index = 0; index < batch; index++) {
        struct msghdr *message = &inbox->messages[index].msg_hdr;
        inbox->vectors[index] = (struct iovec){inbox->room + index * stride_bytes, room_bytes};
        message->msg_iov = &inbox->vectors[index];
        message->msg_iovlen = 1;
        if (controls)
            message->msg_control = inbox->controls + (size_t)index * CONTROL_BYTES;
        if (names)
            message->msg_name = inbox->names + (size_t)index * NAME_BYTES;
    }
    ub_inbox_renew(inbox, batch);
    return 0;
}

void ub_inbox_release(struct ub_inbox *inbox) {
    free(inbox->messages);
    free(inbox->vectors);
    free(inbox->controls);
    free(inbox->names);
    free(inbox->room);
}

void ub_inbox_renew(struct ub_inbox *inbox, uint32_t messages) {
    if (inbox->controls == NULL && inbox->names == NULL)
        return;
    for (uint32_t index = 0; index < messages; index++) {
        struct msghdr *message = &inbox->messages[index].msg_hdr;
        message->msg_controllen = message->msg_control == NULL ? 0 : CONTROL_BYTES;
        message->msg_namelen = message->msg_name == NULL ? 0 : NAME_BYTES;
    }
}
