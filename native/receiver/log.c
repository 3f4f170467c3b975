/*
 * The log of a receiver: a ring from its loop to a writer, and the files.
 *
 * Owns the format of a file and what becomes of a datagram that the disk does not take. The loop's
 * side must never wait: what finds no room, the loop counts.
 */
#include "read.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/stat.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHUNK_BYTES = 256 << 10, PIPE_MS = 20 };
static const uint64_t EMPTY_NS = 2000000; /* between two checks of an empty ring */

struct writer {
    const struct ub_log_config *config;
    struct ub_log_stats *stats;
    int file; /* -1: none */
    uint64_t file_bytes;
    uint64_t give_up_ns; /* 0: the loop has not ended */
};

/* The data of one write: whole frames from the oldest on. */
struct chunk {
    uint64_t from;
    uint64_t bytes;
    uint64_t written;
};

static void ring_copy_in(struct ub_log *log, uint64_t at, const void *from, uint64_t bytes) {
    uint64_t place = at & (log->ring_bytes - 1);
    uint64_t first = log->ring_bytes - place < bytes ? log->ring_bytes - place : bytes;
    memcpy(log->ring + place, from, first);
    memcpy(log->ring, (const uint8_t *)from + first, bytes - first);
}

static struct ub_log_frame frame_at(const struct ub_log *log, uint64_t at) {
    struct ub_log_frame frame;
    uint64_t place = at & (log->ring_bytes - 1);
    uint64_t first = log->ring_bytes - place;
    if (first > sizeof frame)
        first = sizeof frame;
    memcpy(&frame, log->ring + place, first);
    memcpy((uint8_t *)&frame + first, log->ring, sizeof frame - first);
    return frame;
}

int ub_log_put(struct ub_log *log, const struct ub_log_frame *frame, const uint8_t *bytes) {
    uint64_t put = log->put_bytes, size = sizeof *frame + frame->bytes;
    uint64_t taken = __atomic_load_n(&log->taken_bytes, __ATOMIC_ACQUIRE);
    if (put + size - taken > log->ring_bytes)
        return 0;
    ring_copy_in(log, put, frame, sizeof *frame);
    ring_copy_in(log, put + sizeof *frame, bytes, frame->bytes);
    __atomic_store_n(&log->put_bytes, put + size, __ATOMIC_RELEASE);
    return 1;
}

static void note_error(struct writer *writer, int error) {
    ub_add(&writer->stats->log_errors, 1);
    ub_set(&writer->stats->log_last_errno, (uint64_t)error);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* By its number: the C library's own fstat would ask every host for glibc 2.33. */
static int is_pipe_of_ours(const struct ub_log_config *config, int file) {
    struct statx status;
    const unsigned wanted = STATX_TYPE | STATX_UID;
    return syscall(SYS_statx, file, "", AT_EMPTY_PATH, wanted, &status) == 0 &&
           (status.stx_mode & S_IFMT) == S_IFIFO &&
           (status.stx_uid == geteuid() || status.stx_uid == config->pipes_of);
}

/* An existing file is refused; an existing pipe of this user is written to. */
static int open_file(const struct ub_log_config *config, const char *name) {
    const int flags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    int file = openat(config->folder, name, flags | O_CREAT | O_EXCL, 0600);
    if (file >= 0 || errno != EEXIST)
        return file < 0 ? -errno : file;
    file = openat(config->folder, name, flags);
    if (file < 0)
        return -errno;
    if (is_pipe_of_ours(config, file))
        return file;
    close(file);
    return -EEXIST;
}

static void close_file(struct writer *writer) {
    if (writer->file >= 0)
        close(writer->file);
    writer->file = -1;
}

static int gave_up(const struct writer *writer) {
    return writer->give_up_ns != 0 && ub_now_ns() >= writer->give_up_ns;
}

/* Whether the loop has ended; the time limit starts at the first check after that. */
static int loop_has_left(struct writer *writer) {
    if (!ub_stopped(writer->config->ended))
        return 0;
    if (writer->give_up_ns == 0)
        writer->give_up_ns = ub_now_ns() + writer->config->drain_ns;
    return 1;
}

/* Waits for room in a full pipe; returns whether to try again. */
static int pipe_wait(struct writer *writer) {
    struct pollfd pipe = {.fd = writer->file, .events = POLLOUT};
    (void)poll(&pipe, 1, PIPE_MS);
    (void)loop_has_left(writer);
    return !gave_up(writer);
}

/* Writes all of it, or as much as can be written; 0 or errno. */
static int write_all(struct writer *writer, struct iovec *pieces, int count, uint64_t *written) {
    while (count > 0) {
        if (pieces->iov_len == 0) {
            pieces++;
            count--;
            continue;
        }
        ssize_t result = writev(writer->file, pieces, count);
        if (result < 0 && errno != EINTR && (errno != EAGAIN || !pipe_wait(writer)))
            return errno;
        uint64_t done = result < 0 ? 0 : (uint64_t)result;
        *written += done;
        for (struct iovec *piece = pieces; done != 0; piece++) {
            size_t part = done < piece->iov_len ? done : piece->iov_len;
            piece->iov_base = (uint8_t *)piece->iov_base + part;
            piece->iov_len -= part;
            done -= part;
        }
    }
    return 0;
}

/* Removes a file without a head; pipes, which have no position, are never removed. */
static void remove_file(const struct writer *writer, const char *name) {
    if (lseek(writer->file, 0, SEEK_CUR) >= 0)
        (void)unlinkat(writer->config->folder, name, 0);
}

/* Begins the next file and removes the one that is no longer kept; 0 or -errno. If there is no room
 * for a head, existing files may be the last that the disk takes, and stay. */
static int next_file(struct writer *writer) {
    const struct ub_log_config *config = writer->config;
    char name[PATH_MAX];
    uint64_t number = writer->stats->log_files, head_bytes = 0;
    close_file(writer);
    if (snprintf(name, sizeof name, "%s.%llu", config->name, (unsigned long long)number) >=
        (int)sizeof name)
        return -ENAMETOOLONG;
    writer->file = open_file(config, name);
    if (writer->file < 0)
        return writer->file;
    uint64_t now_ns = ub_now_ns();
    struct ub_log_head head = {.magic = "UBLOG1",
                               .monotonic_ns = now_ns,
                               .realtime_ns = now_ns + ub_realtime_ahead_ns(now_ns)};
    struct iovec piece = {&head, sizeof head};
    int error = write_all(writer, &piece, 1, &head_bytes);
    if (error != 0) {
        remove_file(writer, name);
        return -error;
    }
    ub_add(&writer->stats->log_files, 1);
    writer->file_bytes = head_bytes;
    ub_add(&writer->stats->logged_bytes, head_bytes);
    if (number >= config->keep) {
        (void)snprintf(name, sizeof name, "%s.%llu", config->name,
                       (unsigned long long)(number - config->keep));
        (void)unlinkat(config->folder, name, 0);
    }
    return 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Counts a chunk's frames: those completely written, and the rest. */
static uint64_t account_chunk(struct writer *writer, const struct chunk *chunk) {
    struct ub_log_stats *stats = writer->stats;
    uint64_t at = 0, whole = 0;
    while (at < chunk->bytes) {
        struct ub_log_frame frame = frame_at(writer->config->log, chunk->from + at);
        at += sizeof frame + frame.bytes;
        if (at > chunk->written) {
            ub_add(&stats->failed_packets, 1);
            continue;
        }
        whole = at;
        ub_add(&stats->logged_packets, 1);
        if (stats->log_first_ns == 0)
            ub_set(&stats->log_first_ns, frame.arrived_ns);
        if (frame.arrived_ns == stats->log_first_ns)
            ub_add(&stats->log_first_packets, 1);
        ub_set(&stats->log_last_ns, frame.arrived_ns);
    }
    ub_add(&stats->logged_bytes, whole);
    return whole;
}

/* As many whole frames as one call may take, at least one. */
static struct chunk next_chunk(const struct writer *writer, uint64_t available) {
    const struct ub_log *log = writer->config->log;
    struct chunk chunk = {.from = log->taken_bytes};
    while (chunk.bytes < available) {
        uint64_t size = sizeof(struct ub_log_frame) + frame_at(log, chunk.from + chunk.bytes).bytes;
        uint64_t end = chunk.bytes + size;
        if (chunk.bytes != 0 &&
            (end > CHUNK_BYTES || writer->file_bytes + end > writer->config->max_file_bytes))
            break;
        chunk.bytes = end;
    }
    return chunk;
}

static void write_chunk(struct writer *writer, struct chunk *chunk) {
    struct ub_log *log = writer->config->log;
    uint64_t place = chunk->from & (log->ring_bytes - 1);
    uint64_t first =
        log->ring_bytes - place < chunk->bytes ? log->ring_bytes - place : chunk->bytes;
    struct iovec pieces[2] = {{log->ring + place, first}, {log->ring, chunk->bytes - first}};
    int error = write_all(writer, pieces, 2, &chunk->written);
    uint64_t whole = account_chunk(writer, chunk);
    if (error != 0 && error != EAGAIN) /* EAGAIN: a pipe whose reader was too slow */
        note_error(writer, error);
    writer->file_bytes += whole;
    /* An incomplete frame is removed; in a pipe it stays. */
    if (whole != chunk->written && ftruncate(writer->file, (off_t)writer->file_bytes) == 0)
        (void)lseek(writer->file, (off_t)writer->file_bytes, SEEK_SET);
}

/* Moves frames from the ring to a file, if one can be opened. */
static void write_frames(struct writer *writer, uint64_t available) {
    struct chunk chunk = next_chunk(writer, available);
    if (writer->file < 0 || writer->file_bytes + chunk.bytes > writer->config->max_file_bytes) {
        int error = next_file(writer);
        if (error != 0) {
            note_error(writer, -error);
            close_file(writer);
        }
    }
    if (writer->file >= 0 && !gave_up(writer))
        write_chunk(writer, &chunk);
    else
        (void)account_chunk(writer, &chunk);
    __atomic_store_n(&writer->config->log->taken_bytes, chunk.from + chunk.bytes, __ATOMIC_RELEASE);
}

const char *ub_log_write_check(const struct ub_log_config *config) {
    if (config == NULL)
        return "config: not NULL";
    if (config->log == NULL || !ub_log_valid(config->log))
        return "log: a ring whose bytes are a power of two up to UB_LOG_BYTES_MAX";
    if (config->ended == NULL)
        return "ended: not NULL";
    if (config->name == NULL)
        return "name: not NULL";
    if (config->max_file_bytes <= sizeof(struct ub_log_head))
        return "max_file_bytes: more than the head of a file";
    if (config->keep == 0)
        return "keep: at least 1";
    return NULL;
}

int ub_log_valid(const struct ub_log *log) {
    uint64_t bytes = log->ring_bytes;
    return log->ring != NULL && bytes != 0 && (bytes & (bytes - 1)) == 0 &&
           bytes <= UB_LOG_BYTES_MAX;
}

/* Returns when the loop has left and the ring is empty or given up; -errno if the first file cannot
 * be opened. Later failures are counted, and the loop goes on. */
int ub_log_write(const struct ub_log_config *config, struct ub_log_stats *stats) {
    if (stats == NULL || ub_log_write_check(config) != NULL)
        return -EINVAL;
    struct writer writer = {.config = config, .stats = stats, .file = -1};
    int error = next_file(&writer);
    while (error == 0) {
        int left = loop_has_left(&writer);
        uint64_t available =
            __atomic_load_n(&config->log->put_bytes, __ATOMIC_ACQUIRE) - config->log->taken_bytes;
        if (available != 0) {
            write_frames(&writer, available);
        } else if (left) {
            break;
        } else {
            uint64_t now = ub_now_ns();
            ub_sleep_slice(now, now + EMPTY_NS);
        }
    }
    close_file(&writer);
    return error;
}
