/* A receiver as first written: one socket, one recv(2) for each datagram.
 *
 * receiver PORT: on SIGTERM it prints how many datagrams it has read.
 */
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static volatile sig_atomic_t ended;

static void end(int number) {
    (void)number;
    ended = 1;
}

int main(int count, char **arguments) {
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    struct sigaction on_end = {.sa_handler = end};
    int receiving = socket(AF_INET6, SOCK_DGRAM, 0);
    unsigned long read = 0;
    char datagram[2048];
    address.sin6_port = htons((uint16_t)atoi(count > 1 ? arguments[1] : "4321"));
    if (bind(receiving, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("bind");
        return 1;
    }
    sigaction(SIGTERM, &on_end, NULL);
    puts("listening");
    fflush(stdout);
    while (!ended)
        if (recv(receiving, datagram, sizeof datagram, 0) >= 0)
            read++;
    printf("read %lu\n", read);
    return 0;
}
