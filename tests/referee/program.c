/* A user's program that receives badly, and what else the referee starts beside a run.
 *
 * program MODE PORT [NUMBER]: each mode is one way not to read, or to be in the way. Built by the
 * referee; it shares no code with udpbench, so that neither can excuse the other.
 */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int fd;
static long number;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char data[65536];

static void rest(long us) {
  struct timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, NULL);
}

static long now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1000000L + time.tv_nsec / 1000;
}

static void burn(long us) {
  /* In user mode nearly all the time: that clock is a system call. */
  for (long end = now_us() + us; now_us() < end;)
    for (volatile int k = 0; k < 3000; k++) {
    }
}

static void take(void) {
  if (recv(fd, data, sizeof data, 0) < 0) exit(3);
}

static void *locked(void *unused) {
  static __thread char own[65536];
  for (;;) {
    if (recv(fd, own, sizeof own, 0) < 0) exit(3);
    pthread_mutex_lock(&lock);
    rest(number);
    pthread_mutex_unlock(&lock);
  }
  return unused;
}

static void filter(void) {
  /* SKF_AD_RANDOM: each datagram is dropped with the same chance, in 1/1000. */
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)(SKF_AD_OFF + SKF_AD_RANDOM)),
      BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, 1000),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, (unsigned)number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0xffffffff),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program)) exit(4);
}

/* Drops every packet of receive0 until this process ends: with it ends the link. */
static int drop_all(int program_type, int attach_type, int verdict) {
  struct bpf_insn code[] = {
      {.code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = verdict},
      {.code = BPF_JMP | BPF_EXIT},
  };
  union bpf_attr load = {.prog_type = (unsigned)program_type};
  load.insns = (unsigned long)code;
  load.insn_cnt = sizeof code / sizeof *code;
  load.license = (unsigned long)"GPL";
  load.expected_attach_type = (unsigned)attach_type;
  union bpf_attr link = {.link_create.attach_type = (unsigned)attach_type};
  link.link_create.prog_fd = (unsigned)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load);
  link.link_create.target_ifindex = if_nametoindex("receive0");
  if (syscall(SYS_bpf, BPF_LINK_CREATE, &link, sizeof link) < 0) {
    perror("bpf");
    return 8;
  }
  for (;;) pause();
}

int main(int argc, char **argv) {
  const char *mode = argv[1];
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(argc > 2 ? atoi(argv[2]) : 0)};
  int on = 1;
  number = argc > 3 ? atol(argv[3]) : 0;
  if (!strcmp(mode, "burn"))
    for (;;) {
    }
  if (!strcmp(mode, "xdp")) return drop_all(BPF_PROG_TYPE_XDP, BPF_XDP, XDP_DROP);
  if (!strcmp(mode, "tcx")) return drop_all(BPF_PROG_TYPE_SCHED_CLS, 46, 2); /* BPF_TCX_INGRESS */
  fd = socket(AF_INET, SOCK_DGRAM, 0);
  if (!strncmp(mode, "stranger", 8)) {
    /* A socket bound to an address is preferred to those bound to all (0). */
    at.sin_addr.s_addr = htonl(number);
    setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  }
  if (!strcmp(mode, "tiny")) {
    int bytes = (int)number;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  }
  if (!strcmp(mode, "filter")) filter();
  if (bind(fd, (struct sockaddr *)&at, sizeof at)) {
    perror("bind");
    return 2;
  }
  puts("listening");
  fflush(stdout);
  if (!strcmp(mode, "stranger-idle"))
    for (;;) pause();
  if (!strcmp(mode, "lock")) {
    pthread_t second;
    pthread_create(&second, NULL, locked, NULL);
    locked(NULL);
  }
  int file = -1;
  if (!strcmp(mode, "sync")) {
    char name[] = "/var/tmp/refereeXXXXXX";
    file = mkstemp(name);
    if (file < 0) return 5;
    unlink(name);
  }
  for (long count = 1;; count++) {
    if (!strcmp(mode, "lump")) {
      rest(number);
      while (recv(fd, data, sizeof data, MSG_DONTWAIT) >= 0) {
      }
      continue;
    }
    take();
    if (!strcmp(mode, "sleep")) rest(number);
    if (!strcmp(mode, "spin")) burn(number);
    if (!strcmp(mode, "sync") && (write(file, data, 64) != 64 || fsync(file))) return 6;
    if (!strcmp(mode, "fork")) {
      pid_t child = fork();
      if (child == 0) _exit(0);
      waitpid(child, NULL, 0);
    }
    if (count == number && !strcmp(mode, "never"))
      for (;;) pause();
    if (count == number && !strcmp(mode, "close")) {
      close(fd);
      for (;;) pause();
    }
  }
}
