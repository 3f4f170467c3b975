/*
 * The messages that a receiver offers room for.
 *
 * Owns their buffers. Must never call the kernel or decide what a datagram counts as.
 */
#include "receiving.h"

#include <stdlib.h>

enum { CONTROL_BYTES = CMSG_SPACE(sizeof(int)) };

/* -ENOMEM where memory is short; the caller releases in any case. */
int ub_inbox_make(struct ub_inbox *inbox, uint32_t batch, uint32_t room_bytes, uint32_t gro) {
    size_t stride_bytes = ub_lines_bytes(room_bytes);
    *inbox = (struct ub_inbox){.batch = batch, .room_bytes = room_bytes};
    inbox->messages = ub_allocate(batch * sizeof *inbox->messages);
    inbox->vectors = ub_allocate(batch * sizeof *inbox->vectors);
    inbox->room = ub_allocate(batch * stride_bytes);
    if (gro)
        inbox->controls = ub_allocate((size_t)batch * CONTROL_BYTES);
    if (inbox->messages == NULL || inbox->vectors == NULL || inbox->room == NULL ||
        (gro && inbox->controls == NULL))
        return -ENOMEM;
    for (uint32_t index = 0; index < batch; index++) {
        inbox->vectors[index] = (struct iovec){inbox->room + index * stride_bytes, room_bytes};
        inbox->messages[index].msg_hdr.msg_iov = &inbox->vectors[index];
        inbox->messages[index].msg_hdr.msg_iovlen = 1;
        if (gro)
            inbox->messages[index].msg_hdr.msg_control =
                inbox->controls + (size_t)index * CONTROL_BYTES;
    }
    ub_inbox_renew(inbox, batch);
    return 0;
}

void ub_inbox_release(struct ub_inbox *inbox) {
    free(inbox->messages);
    free(inbox->vectors);
    free(inbox->controls);
    free(inbox->room);
}

/* Offers the room for control messages again: the kernel writes over its size what it used. */
void ub_inbox_renew(struct ub_inbox *inbox, uint32_t messages) {
    if (inbox->controls == NULL)
        return;
    for (uint32_t index = 0; index < messages; index++)
        inbox->messages[index].msg_hdr.msg_controllen = CONTROL_BYTES;
}
