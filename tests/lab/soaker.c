/* soaker CPU FILE SECONDS: uses the time of a CPU that nothing else wants, and writes down what it
 * did not get.
 *
 * Prints an empty line once it has begun. Once a millisecond FILE gets four numbers of 64 bits:
 * CLOCK_MONOTONIC, the time in ns that other tasks have had so far, the time in ns that interrupts
 * and the hypervisor took from the loop itself, and that of its own calls to yield. No clock of the kernel counts either,
 * only what the loop sees pass between two turns. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/rseq.h>
#include <time.h>
#include <unistd.h>

/* A turn takes some 30 ns, a call to yield some 1000; the shortest interrupt takes longer than each.
 */
#define LEAST_NS 400
#define LEAST_YIELD_NS 2000
#define EVERY_NS 1000000
#define COLUMNS 4
/* The scheduler may choose a loop that waits for all others although one of them waits, and then
 * asks again at the tick, after up to 4 ms: unless it is asked before. */
#define YIELD_NS 50000

/* The kernel clears the pointer to a critical section at a context switch outside of it (rseq(2)),
 * and reads the signature before its end. This one is never entered. */
__asm__(".pushsection .text\n.long 0x53053053\nnever: .skip 64\n.popsection");
extern const char never[];
static struct rseq_cs section __attribute__((aligned(32)));

static uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(int count, char **words) {
    volatile struct rseq *own = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);
    uint64_t last, due, yield, end, tasks = 0, interrupts = 0, yields = 0, *row;
    struct sched_param idle = {0};
    size_t bytes;
    cpu_set_t cpus;
    int file;

    if (count != 4 || __rseq_size == 0)
        return 2;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(words[1]), &cpus);
    bytes = (size_t)atoi(words[3]) * 1000 * COLUMNS * sizeof *row;
    file = open(words[2], O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) || sched_setaffinity(0, sizeof cpus, &cpus) ||
        sched_setscheduler(0, SCHED_IDLE, &idle) || prctl(PR_SET_PDEATHSIG, SIGKILL))
        return 1;
    row = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (row == MAP_FAILED)
        return 1;
    section.start_ip = (uintptr_t)never + 32;
    section.post_commit_offset = 1;
    section.abort_ip = (uintptr_t)never;
    own->rseq_cs = (uintptr_t)&section;
    last = due = yield = *row = now_ns();
    row += COLUMNS;
    if (write(STDOUT_FILENO, "\n", 1) != 1)
        return 1;
    end = last + (uint64_t)(atoi(words[3]) - 1) * 1000000000;
    while (last < end) {
        uint64_t now = now_ns(), least = LEAST_NS;

        if (now >= yield) {
            sched_yield();
            now = now_ns();
            yield = now + YIELD_NS;
            least = LEAST_YIELD_NS;
        }
        if (own->rseq_cs == 0) {
            own->rseq_cs = (uintptr_t)&section;
            now = now_ns(); /* the switch may have come after the clock was read */
            tasks += now - last;
            yield = now + YIELD_NS;
        } else if (now - last > least)
            interrupts += now - last;
        else if (least == LEAST_YIELD_NS)
            yields += now - last;
        last = now;
        if (now < due)
            continue;
        row[1] = tasks;
        row[2] = interrupts;
        row[3] = yields;
        row[0] = now;
        row += COLUMNS;
        due = now + EVERY_NS;
    }
    return 0;
}
