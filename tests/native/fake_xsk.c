/*
 * A card as AF_XDP shows it: linked in by -Wl,--wrap for the calls that set up such a socket.
 *
 * Plays net/xdp/xsk.c for the one socket that a test says; every other call is the kernel's.
 */
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#include "xsk.h"

enum { CONSUMER_AT = 64, FLAGS_AT = 128, DESCRIPTORS_AT = 256 };

static int32_t played = -1, refused_option, refused_with;
static uint32_t has_zerocopy, bind_flags;

/* Which socket is played, whether the driver reads and writes without a copy, and with which errno
 * an option (0: bind) is refused; 0: none is. */
void fake_card(int32_t socket, uint32_t zerocopy, int32_t option, int32_t error);
void fake_card(int32_t socket, uint32_t zerocopy, int32_t option, int32_t error) {
    played = socket;
    has_zerocopy = zerocopy;
    refused_option = option;
    refused_with = error;
    bind_flags = 0;
}

/* The flags that the socket was bound with. */
uint32_t fake_card_flags(void);
uint32_t fake_card_flags(void) {
    return bind_flags;
}

static int refuses(int option) {
    if (refused_with == 0 || option != refused_option)
        return 0;
    errno = refused_with;
    return 1;
}

int __real_setsockopt(int socket, int level, int option, const void *value, socklen_t bytes);
int __wrap_setsockopt(int socket, int level, int option, const void *value, socklen_t bytes);
int __wrap_setsockopt(int socket, int level, int option, const void *value, socklen_t bytes) {
    if (socket != played || level != SOL_XDP)
        return __real_setsockopt(socket, level, option, value, bytes);
    return refuses(option) ? -1 : 0;
}

int __real_getsockopt(int socket, int level, int option, void *value, socklen_t *bytes);
int __wrap_getsockopt(int socket, int level, int option, void *value, socklen_t *bytes);
int __wrap_getsockopt(int socket, int level, int option, void *value, socklen_t *bytes) {
    if (socket != played || level != SOL_XDP)
        return __real_getsockopt(socket, level, option, value, bytes);
    if (refuses(option))
        return -1;
    if (option == XDP_OPTIONS)
        /* A forced copy is one, whatever the driver can do. */
        ((struct xdp_options *)value)->flags =
            has_zerocopy && !(bind_flags & XDP_COPY) ? XDP_OPTIONS_ZEROCOPY : 0;
    if (option == XDP_MMAP_OFFSETS) {
        struct xdp_ring_offset ring = {.consumer = CONSUMER_AT, .desc = DESCRIPTORS_AT};
        ring.flags = FLAGS_AT;
        *(struct xdp_mmap_offsets *)value = (struct xdp_mmap_offsets){ring, ring, ring, ring};
    }
    return 0;
}

int __real_bind(int socket, const struct sockaddr *address, socklen_t bytes);
int __wrap_bind(int socket, const struct sockaddr *address, socklen_t bytes);
int __wrap_bind(int socket, const struct sockaddr *address, socklen_t bytes) {
    if (socket != played || address->sa_family != AF_XDP)
        return __real_bind(socket, address, bytes);
    bind_flags = ((const struct sockaddr_xdp *)(const void *)address)->sxdp_flags;
    return refuses(0) ? -1 : 0;
}

void *__real_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset) {
    if (file < 0 || file != played)
        return __real_mmap(at, bytes, access, flags, file, offset);
    uint8_t *ring = __real_mmap(at, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring != MAP_FAILED)
        *(uint32_t *)(void *)(ring + FLAGS_AT) = XDP_RING_NEED_WAKEUP;
    return ring;
}
