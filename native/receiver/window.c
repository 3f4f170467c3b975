/*
 * Which sequence numbers of a flow have arrived: the window.
 *
 * A flow's window is a ring of words, each the bitmap of 32 consecutive sequence numbers and the
 * lap of the ring they belong to, so that one compare-and-swap both notes arrivals and reuses a
 * word. It lies in memory that several workers, possibly in several processes, map: nothing here
 * may lock, keep a pointer into it beyond a call, or assume to be the only writer.
 *
 * Results are exact as long as a word has not been reused: `ancient` means that the word holds a
 * newer lap, never a mere distance. Laps compare serially (RFC 1982); they are 32 bits wide, or
 * fewer if the 48-bit sequence numbers wrap earlier. A gap must therefore stay below half of them:
 * 2^36 packets times the words of the ring, at most 2^47.
 */
#include "window.h"

_Static_assert(offsetof(struct ub_flow_state, words) == UB_CACHE_LINE_BYTES,
               "the counts of a flow fill the line before its words");
_Static_assert(UB_WINDOW_WORD_PACKETS == 32, "a word is 32 bits of lap and 32 of bitmap");
_Static_assert(__atomic_always_lock_free(sizeof(uint64_t), 0),
               "a lock inside an atomic would not reach across processes");

enum { LAP_BITS_MAX = 32, SEQUENCE_BITS = 48, WORD_BITS = 5 };

/* ---- layout of a flow ------------------------------------------------------------------------ */

static int words_valid(uint32_t window_words) {
    return window_words != 0 && (window_words & (window_words - 1)) == 0 &&
           window_words <= UB_WINDOW_WORDS_MAX;
}

static size_t stride_bytes(uint32_t window_words) {
    return ub_lines_bytes(offsetof(struct ub_flow_state, words) +
                          (size_t)window_words * sizeof(uint64_t));
}

uint64_t ub_flow_state_bytes(uint32_t flow_count, uint32_t window_words) {
    if (flow_count == 0 || flow_count > UB_FLOWS_MAX || !words_valid(window_words))
        return 0;
    return (uint64_t)flow_count * stride_bytes(window_words);
}

struct ub_flow_state *ub_flow_state_at(struct ub_flow_state *flows, uint32_t window_words,
                                       uint32_t flow) {
    return (struct ub_flow_state *)((uint8_t *)flows + flow * stride_bytes(window_words));
}

void ub_flow_totals_read(const struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                         struct ub_flow_totals *totals) {
    const uint8_t *at = (const uint8_t *)flows + flow * stride_bytes(window_words);
    const struct ub_flow_state *state = (const struct ub_flow_state *)at;
    totals->packets = __atomic_load_n(&state->packets, __ATOMIC_RELAXED);
    totals->highest = __atomic_load_n(&state->highest, __ATOMIC_RELAXED);
}

/* ---- the window ------------------------------------------------------------------------------ */

/* How far lap `a` is ahead of lap `b`; negative: behind. */
static int64_t laps_ahead(uint32_t a, uint32_t b, unsigned lap_bits) {
    /* Shifted to the top bit, the difference wraps where the laps do. */
    return (int32_t)((a - b) << (LAP_BITS_MAX - lap_bits));
}

/* Puts `seen` into its word; the bits that were set already, or -1 if the word holds a newer lap.
 */
static int64_t word_merge(uint64_t *word, uint32_t lap, unsigned lap_bits, uint32_t seen) {
    /* Relaxed: the word has all information on its packets and orders nothing else. */
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
        uint32_t before = (uint32_t)old;
        int64_t ahead = before == 0 ? 1 : laps_ahead(lap, (uint32_t)(old >> 32), lap_bits);
        if (ahead < 0)
            return -1;
        if (ahead > 0)
            before = 0;
        uint64_t merged = (uint64_t)lap << 32 | before | seen;
        /* All duplicates: nothing to write, so the cache line stays shared. */
        if (merged == old)
            return before;
        if (__atomic_compare_exchange_n(word, &old, merged, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return before;
    }
}

static void highest_raise(uint64_t *highest, uint64_t to) {
    uint64_t known = __atomic_load_n(highest, __ATOMIC_RELAXED);
    while (known < to &&
           !__atomic_compare_exchange_n(highest, &known, to, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

void ub_run_begin(struct ub_run *run, struct ub_flow_state *state, uint32_t flow, uint64_t number) {
    run->state = state;
    run->number = number;
    run->highest = __atomic_load_n(&state->highest, __ATOMIC_RELAXED);
    run->flow = flow;
    run->seen = run->others = run->late = 0; /* lengths are read only of others */
    run->repeated = 0;
}

/* One compare-and-swap for the whole run: with GRO, or one flow alone, that is 32 datagrams. */
void ub_run_flush(struct ub_run *run, uint32_t window_words, struct ub_arrivals *arrivals) {
    struct ub_flow_state *state = run->state;
    if (state == NULL)
        return;
    run->state = NULL;
    unsigned ring_bits = (unsigned)__builtin_ctz(window_words);
    unsigned lap_bits = SEQUENCE_BITS - WORD_BITS - ring_bits;
    if (lap_bits > LAP_BITS_MAX)
        lap_bits = LAP_BITS_MAX;
    uint32_t lap = (uint32_t)(run->number >> ring_bits);
    uint64_t *word = &state->words[run->number & (window_words - 1)];
    int64_t before = word_merge(word, lap, lap_bits, run->seen);
    uint64_t seen = (uint64_t)__builtin_popcount(run->seen);
    if (before < 0) {
        arrivals->ancient += seen + run->repeated;
        return;
    }
    uint32_t fresh = run->seen & ~(uint32_t)before;
    uint64_t received = (uint64_t)__builtin_popcount(fresh);
    arrivals->received += received;
    arrivals->duplicate += seen - received + run->repeated;
    for (uint32_t others = fresh & run->others; others != 0; others &= others - 1) {
        arrivals->others++;
        arrivals->others_bytes += run->lengths[__builtin_ctz(others)];
    }
    arrivals->late += (uint64_t)__builtin_popcount(fresh & run->late);
    if (received != 0) {
        __atomic_fetch_add(&state->packets, received, __ATOMIC_RELAXED);
        highest_raise(&state->highest, run->highest);
    }
}

const char *ub_window_check(const struct ub_flow_state *flows, uint32_t window_words) {
    if (!words_valid(window_words))
        return "window_words: a power of two up to UB_WINDOW_WORDS_MAX";
    if (flows == NULL)
        return "flows: not NULL";
    return NULL;
}

int ub_window_add(struct ub_flow_state *flows, uint32_t window_words, uint32_t flow,
                  uint64_t sequence) {
    if (ub_window_check(flows, window_words) != NULL)
        return -EINVAL;
    sequence &= UB_SEQUENCE_MASK;
    struct ub_run run;
    struct ub_arrivals arrivals = {0};
    ub_run_begin(&run, ub_flow_state_at(flows, window_words, flow), flow,
                 sequence / UB_WINDOW_WORD_PACKETS);
    ub_run_note(&run, sequence);
    ub_run_flush(&run, window_words, &arrivals);
    if (arrivals.ancient)
        return 3;
    if (arrivals.duplicate)
        return 2;
    return arrivals.late ? 1 : 0;
}
