/*
 * An AF_XDP socket: the rings shared with the kernel.
 */
#ifndef UB_XSK_H
#define UB_XSK_H

#include "loop.h"

#include <linux/if_xdp.h>
#include <sys/socket.h>

#ifndef AF_XDP
#define AF_XDP 44 /* include/linux/socket.h, since Linux 4.18 */
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#ifndef XDP_MAX_TX_SKB_BUDGET
#define XDP_MAX_TX_SKB_BUDGET 9 /* include/uapi/linux/if_xdp.h, since Linux 6.17 */
#endif

/* Wakes the kernel up for the ring if it requested that: 0 or -errno. */
static inline int ub_xsk_kick(const struct ub_xsk *xsk) {
    if (!(__atomic_load_n(xsk->send.flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP))
        return 0;
    return sendto(xsk->socket, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 ? -errno : 0;
}

/* Received frames that were not returned. */
static inline uint32_t ub_xsk_received(const struct ub_xsk *xsk) {
    return __atomic_load_n(xsk->receive.producer, __ATOMIC_ACQUIRE) - *xsk->receive.consumer;
}

/* Returns the memory of the oldest frames, and their descriptors, to the kernel. */
void ub_xsk_give_back(struct ub_xsk *xsk, uint32_t frames);

#endif
