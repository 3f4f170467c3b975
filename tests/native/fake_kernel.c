/*
 * A kernel that does as it is told: linked in by -Wl,--wrap for the calls that send, for reading
 * completions, for aligned_alloc, and for clock_gettime.
 *
 * A call that sends frames, or wakes a driver to receive them, is the test's own. Any other that
 * sends plays a script, a step a call, and logs what was offered; when the script is over it takes
 * all. Calls that receive fail as listed, and then are the kernel's. Completions of zero copy come
 * as the test lists them, each after a number of calls and of reads that find none. aligned_alloc
 * fails after a number of allocations. A number of readings of CLOCK_REALTIME come late. Three ways
 * of receiving more count how often they are prepared and released: the first one calls and waits
 * in one, the second goes with every wait; so does the third, which plays the script: messages, or
 * -errno, a call.
 */
#define _GNU_SOURCE
#include <time.h> /* before errqueue.h, which needs it */

#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "receiver/receive.h"
#include "sender/pacer.h"

enum { STEPS_MAX = 64, LOG_MAX = 4096, COMPLETIONS_MAX = 64 };

struct fake_step {
    int32_t takes; /* messages, or -errno */
    uint32_t delay_ms;
};
struct fake_call {
    int32_t socket;
    uint32_t offered;
    uint64_t first_sequence;
    uint64_t place; /* of the first message's bytes */
    uint64_t bytes; /* of all messages */
    int32_t flags;
    uint64_t at_ns;
};
struct fake_completion {
    uint32_t first;
    uint32_t last;
    uint32_t code;
    uint32_t silent_reads; /* before it */
    uint32_t after_calls;
};

static struct fake_step steps[STEPS_MAX];
static uint32_t step_count;
static int repeats_last;
static struct fake_call calls[LOG_MAX];
static uint32_t call_count;

void fake_script(const struct fake_step *script, uint32_t count, int repeat_last) {
    memcpy(steps, script, count * sizeof *steps);
    step_count = count;
    repeats_last = repeat_last;
    call_count = 0;
}

uint32_t fake_calls(struct fake_call *to) {
    memcpy(to, calls, sizeof calls);
    return call_count;
}

static uint64_t bytes_of(const struct msghdr *message) {
    return message->msg_iov->iov_len;
}

static uint64_t sequence_of(const struct msghdr *message) {
    const uint8_t *header = message->msg_iov->iov_base;
    uint64_t sequence = 0;
    for (int at = 6; at < 12; at++)
        sequence = sequence << 8 | header[at];
    return sequence;
}

/* What the next step says, after its delay: messages, or -errno. */
static int play(struct fake_call call) {
    uint32_t step_index = call_count;
    call.at_ns = ub_now_ns();
    if (call_count < LOG_MAX)
        calls[call_count++] = call;
    if (step_index >= step_count && !repeats_last)
        return (int)call.offered;
    struct fake_step step = steps[step_index < step_count ? step_index : step_count - 1];
    struct timespec delay = {.tv_nsec = step.delay_ms * 1000000L};
    if (step.delay_ms)
        nanosleep(&delay, NULL);
    return step.takes < (int)call.offered ? step.takes : (int)call.offered;
}

static int result_of(int taken) {
    if (taken >= 0)
        return taken;
    errno = -taken;
    return -1;
}

static struct fake_call call_of(int socket, const struct msghdr *message, uint32_t offered,
                                int flags) {
    return (struct fake_call){
        .socket = socket,
        .offered = offered,
        .first_sequence = sequence_of(message),
        .place = (uint64_t)message->msg_iov->iov_base,
        .bytes = bytes_of(message),
        .flags = flags,
    };
}

int __wrap_sendmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags);
int __wrap_sendmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags) {
    struct fake_call call = call_of(socket, &messages[0].msg_hdr, count, flags);
    for (unsigned int index = 1; index < count; index++)
        call.bytes += bytes_of(&messages[index].msg_hdr);
    return result_of(play(call));
}

ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags) {
    int taken = play(call_of(socket, message, 1, flags));
    return taken < 0 ? result_of(taken) : (ssize_t)bytes_of(message);
}

ssize_t __wrap_send(int socket, const void *bytes, size_t length, int flags);
ssize_t __wrap_send(int socket, const void *bytes, size_t length, int flags) {
    struct iovec vector = {(void *)bytes, length};
    return __wrap_sendmsg(socket, &(struct msghdr){.msg_iov = &vector}, flags);
}

static int (*kicked)(void);

/* What a socket for frames does when it is kicked: 0 or -errno. */
void fake_kick(int (*kick)(void)) {
    kicked = kick;
}

ssize_t __wrap_sendto(int socket, const void *bytes, size_t length, int flags,
                      const struct sockaddr *to, socklen_t to_bytes);
ssize_t __wrap_sendto(int socket, const void *bytes, size_t length, int flags,
                      const struct sockaddr *to, socklen_t to_bytes) {
    (void)socket, (void)to, (void)to_bytes;
    return bytes != NULL || length != 0 || flags != MSG_DONTWAIT ? result_of(-EOPNOTSUPP)
                                                                 : result_of(kicked());
}

static int (*woken)(void);
static int (*polled)(void);

/* What recvfrom(2) of a socket for frames does, and poll(2), unless it is NULL: 0 or -errno. */
void fake_wake(int (*wake)(void), int (*look)(void)) {
    woken = wake;
    polled = look;
}

ssize_t __wrap_recvfrom(int socket, void *bytes, size_t length, int flags, struct sockaddr *from,
                        socklen_t *from_bytes);
ssize_t __wrap_recvfrom(int socket, void *bytes, size_t length, int flags, struct sockaddr *from,
                        socklen_t *from_bytes) {
    (void)socket, (void)from, (void)from_bytes;
    return bytes != NULL || length != 0 || flags != MSG_DONTWAIT ? result_of(-EOPNOTSUPP)
                                                                 : result_of(woken());
}

int __real_poll(struct pollfd *files, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *files, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *files, nfds_t count, int timeout_ms) {
    return polled == NULL ? __real_poll(files, count, timeout_ms) : result_of(polled());
}

static const int32_t *failures;
static uint32_t failure_count;

/* The errno of each of the next calls, 0 where it is the kernel's; the list stays the caller's. */
void fake_receive_failures(const int32_t *list, uint32_t count) {
    failures = list;
    failure_count = count;
}

static int receive_failure(void) {
    if (failure_count == 0)
        return 0;
    failure_count--;
    return *failures++;
}

ssize_t __real_recv(int socket, void *bytes, size_t length, int flags);
ssize_t __wrap_recv(int socket, void *bytes, size_t length, int flags);
ssize_t __wrap_recv(int socket, void *bytes, size_t length, int flags) {
    int error = receive_failure();
    return error != 0 ? result_of(-error) : __real_recv(socket, bytes, length, flags);
}

int __real_recvmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags,
                    struct timespec *limit);
int __wrap_recvmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags,
                    struct timespec *limit);
int __wrap_recvmmsg(int socket, struct mmsghdr *messages, unsigned int count, int flags,
                    struct timespec *limit) {
    int error = receive_failure();
    return error != 0 ? result_of(-error) : __real_recvmmsg(socket, messages, count, flags, limit);
}

static struct fake_completion completions[COMPLETIONS_MAX];
static uint32_t completion_count;
static uint32_t completion_next;
static uint32_t silent_reads;

void fake_completions(const struct fake_completion *list, uint32_t count) {
    memcpy(completions, list, count * sizeof *list);
    completion_count = count;
    completion_next = 0;
    silent_reads = 0;
}

uint32_t fake_completions_left(void) {
    return completion_count - completion_next;
}

ssize_t __real_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags) {
    if (!(flags & MSG_ERRQUEUE))
        return __real_recvmsg(socket, message, flags);
    struct fake_completion next = completions[completion_next];
    if (completion_next == completion_count || call_count < next.after_calls ||
        silent_reads++ < next.silent_reads)
        return result_of(-EAGAIN);
    silent_reads = 0;
    completion_next++;
    struct sock_extended_err error = {.ee_origin = SO_EE_ORIGIN_ZEROCOPY,
                                      .ee_code = (uint8_t)next.code,
                                      .ee_info = next.first,
                                      .ee_data = next.last};
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_IP;
    header->cmsg_type = IP_RECVERR;
    header->cmsg_len = CMSG_LEN(sizeof error);
    memcpy(CMSG_DATA(header), &error, sizeof error);
    message->msg_controllen = CMSG_SPACE(sizeof error);
    return 0;
}

static int32_t way_error;
static uint32_t way_prepared;
static uint32_t way_released;

void fake_way(int32_t error) {
    way_error = error;
    way_prepared = way_released = 0;
}

uint32_t fake_way_prepared(void) {
    return way_prepared;
}

uint32_t fake_way_released(void) {
    return way_released;
}

static int way_prepare(struct ub_inbox *inbox, const struct ub_receive_config *config,
                       uint32_t batch, uint32_t room_bytes) {
    int error = ub_inbox_prepare(inbox, config, batch, room_bytes);
    way_prepared++;
    inbox->own = malloc(1);
    return way_error != 0 ? -way_error : error;
}

static int way_receive(struct ub_inbox *inbox, int socket, int flags) {
    ssize_t length = recv(socket, inbox->room, inbox->room_bytes, flags | MSG_TRUNC);
    if (length < 0)
        return -errno;
    inbox->messages[0].msg_len = (uint32_t)length;
    return 1;
}

/* Messages without payload. */
static int way_play(struct ub_inbox *inbox, int socket, int flags) {
    return play((struct fake_call){.socket = socket, .offered = inbox->batch, .flags = flags});
}

static void way_release(struct ub_inbox *inbox) {
    way_released++;
    free(inbox->own);
    ub_inbox_release(inbox);
}

const struct ub_receive_way *__real_ub_receive_way_of(uint32_t call);
const struct ub_receive_way *__wrap_ub_receive_way_of(uint32_t call);
const struct ub_receive_way *__wrap_ub_receive_way_of(uint32_t call) {
    enum { FIRST = 900 };
    static const struct ub_receive_way more[] = {
        {NULL, way_prepare, way_receive, way_release, 1, 0, UB_WAIT_BIT(UB_WAIT_BLOCK)},
        {NULL, way_prepare, way_receive, way_release, 1, 0, UB_WAITS_ALL},
        {NULL, way_prepare, way_play, way_release, UB_BATCH_MAX, 0, UB_WAITS_ALL},
    };
    return call < FIRST ? __real_ub_receive_way_of(call) : &more[call - FIRST];
}

static uint32_t allocations_left = UINT32_MAX;

void fake_memory(uint32_t allocations) {
    allocations_left = allocations;
}

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    if (allocations_left == 0)
        return NULL;
    if (allocations_left != UINT32_MAX)
        allocations_left--;
    return __real_aligned_alloc(alignment, bytes);
}

/* So many steps from a packet's due time on. */
uint64_t ub_due_after(uint64_t packet, uint64_t rate_pps, uint32_t steps);
uint64_t ub_due_after(uint64_t packet, uint64_t rate_pps, uint32_t steps) {
    struct ub_due due = ub_due_at(packet, rate_pps);
    while (steps-- != 0)
        ub_due_next(&due);
    return due.since_start_ns;
}

static uint32_t oversleep_ms;

void fake_oversleep(uint32_t each_ms) {
    oversleep_ms = each_ms;
}

int __real_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                           struct timespec *rest);
int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                           struct timespec *rest);
int __wrap_clock_nanosleep(clockid_t clock, int flags, const struct timespec *until,
                           struct timespec *rest) {
    struct timespec more = {.tv_nsec = oversleep_ms * 1000000L};
    int error = __real_clock_nanosleep(clock, flags, until, rest);
    nanosleep(&more, NULL);
    return error;
}

static uint32_t late_readings;

void fake_late_readings(uint32_t count) {
    late_readings = count;
}

uint32_t fake_late_readings_left(void) {
    return late_readings;
}

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    struct timespec delay = {.tv_nsec = 20000000};
    if (clock == CLOCK_REALTIME && late_readings > 0) {
        late_readings--;
        nanosleep(&delay, NULL);
    }
    return __real_clock_gettime(clock, now);
}
