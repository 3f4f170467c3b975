/*
 * Threads that note the same sequence numbers in one window at once; built with TSan by the test.
 *
 * The window is wider than the numbers, so that none is ancient and each is new for one thread.
 */
#include "receiver/window.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 4, NUMBERS = 40000, WORDS = 2048 };

struct task {
    struct ub_flow_state *flows;
    uint64_t answers[4];
};

static void *note_all(void *argument) {
    struct task *task = argument;
    for (uint64_t sequence = 0; sequence < NUMBERS; sequence++)
        task->answers[ub_window_add(task->flows, WORDS, 0, sequence)]++;
    return NULL;
}

int main(void) {
    struct ub_flow_state *flows = calloc(1, ub_flow_state_bytes(1, WORDS));
    struct task tasks[THREADS] = {0};
    pthread_t threads[THREADS];
    uint64_t sums[4] = {0};
    if (flows == NULL)
        return 1;
    for (int index = 0; index < THREADS; index++) {
        tasks[index].flows = flows;
        if (pthread_create(&threads[index], NULL, note_all, &tasks[index]) != 0)
            return 1;
    }
    for (int index = 0; index < THREADS; index++) {
        pthread_join(threads[index], NULL);
        for (int answer = 0; answer < 4; answer++)
            sums[answer] += tasks[index].answers[answer];
    }
    struct ub_flow_totals totals;
    ub_flow_totals_read(flows, WORDS, 0, &totals);
    free(flows);
    printf("%llu new or late, %llu duplicate, %llu ancient\n",
           (unsigned long long)(sums[0] + sums[1]), (unsigned long long)sums[2],
           (unsigned long long)sums[3]);
    return totals.packets == NUMBERS && totals.highest == NUMBERS ? 0 : 1;
}
