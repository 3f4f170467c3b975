/* crowd NUMBER: a host's many processes. Each only waits, and takes some 100 kB; a '.' on stdout
 * once all are there. All end with the process that started this one. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int count, char **words)
{
    long number = count > 1 ? strtol(words[1], NULL, 10) : 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (long n = 0; n < number; n++) {
        pid_t pid = fork();
        if (pid < 0) {
            perror("crowd: fork");
            return 1;
        }
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
    }
    putchar('.');
    fflush(stdout);
    for (;;)
        pause();
}
