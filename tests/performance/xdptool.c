// What ingress.py needs of XDP, without libbpf.
//
//   xdptool generate IFACE DSTMAC DSTIP SECONDS
//       Sends one UDP frame over and over out of an interface, from kernel context: BPF_PROG_TEST_RUN with live frames
//       and a program that redirects to the interface. A stand-in for pktgen where that module is missing. The other
//       end of a veth must have an XDP program or GRO, so that it takes XDP frames.
//   xdptool drop IFACE [PREFIX LEN]
//       Has an interface drop IPv4 frames to a prefix, or all frames, in its driver until standard input ends.
//
//   cc -O2 -o xdptool xdptool.c
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#define CODE(class, ...) {.code = (class), __VA_ARGS__}
#define LOAD(size, to, from, at) CODE(BPF_LDX | BPF_MEM | (size), .dst_reg = (to), .src_reg = (from), .off = (at))
#define EXIT CODE(BPF_JMP | BPF_EXIT)

static int bpf(int command, union bpf_attr *attributes) {
    return syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

static int load(const struct bpf_insn *code, size_t count) {
    union bpf_attr load = {.prog_type = BPF_PROG_TYPE_XDP,
                           .insns = (uintptr_t)code,
                           .insn_cnt = count,
                           .license = (uintptr_t) "GPL"};
    int program = bpf(BPF_PROG_LOAD, &load);
    if (program < 0) perror("BPF_PROG_LOAD"), exit(1);
    return program;
}

static uint16_t checksum(const uint8_t *bytes, int count) {
    uint32_t sum = 0;
    for (int i = 0; i < count; i += 2) sum += bytes[i] << 8 | bytes[i + 1];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return htons(~sum);
}

static void ignore(int signal) { (void)signal; }

static int generate(int ifindex, char **arguments) {
    // Ethernet, IPv4 from 10.7.0.2, UDP to port 9.
    uint8_t frame[60] = {[6] = 2, [11] = 1, 8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, [26] = 10, 7, 0, 2};
    sscanf(arguments[0], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", frame, frame + 1, frame + 2, frame + 3, frame + 4, frame + 5);
    inet_pton(AF_INET, arguments[1], frame + 30);
    *(uint16_t *)(frame + 24) = checksum(frame + 14, 20);
    frame[34] = 4, frame[37] = 9, frame[39] = 26;
    // Pages are recycled as the receiver left them, so the program writes the headers anew each time.
    int32_t words[9];
    memcpy(words, frame, sizeof words);
#define STORE(word) CODE(BPF_ST | BPF_MEM | BPF_W, .dst_reg = 2, .off = 4 * (word), .imm = words[word])
    struct bpf_insn code[] = {
        LOAD(BPF_W, 2, 1, offsetof(struct xdp_md, data)),
        LOAD(BPF_W, 3, 1, offsetof(struct xdp_md, data_end)),
        CODE(BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 4, .src_reg = 2),
        CODE(BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 4, .imm = 36),
        CODE(BPF_JMP | BPF_JGT | BPF_X, .dst_reg = 4, .src_reg = 3, .off = 13),
        STORE(0), STORE(1), STORE(2), STORE(3), STORE(4), STORE(5), STORE(6), STORE(7), STORE(8),
        CODE(BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 1, .imm = ifindex),
        CODE(BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2, .imm = 0),
        CODE(BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect),
        EXIT,
        CODE(BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = XDP_DROP),
        EXIT,
    };
    int program = load(code, sizeof code / sizeof *code);
    // One run for all, which a signal ends: between two there would be a pause.
    struct sigaction on_alarm = {.sa_handler = ignore};
    sigaction(SIGALRM, &on_alarm, NULL);
    double seconds = atof(arguments[2]);
    struct itimerval timer = {.it_value = {.tv_sec = seconds, .tv_usec = (seconds - (long)seconds) * 1e6}};
    setitimer(ITIMER_REAL, &timer, NULL);
    union bpf_attr run = {.test = {.prog_fd = program,
                                   .repeat = INT32_MAX,
                                   .data_size_in = sizeof frame,
                                   .data_in = (uintptr_t)frame,
                                   .flags = BPF_F_TEST_XDP_LIVE_FRAMES,
                                   .batch_size = 64}};
    if (bpf(BPF_PROG_TEST_RUN, &run) && errno != EINTR) return perror("BPF_PROG_TEST_RUN"), 1;
    return 0;
}

static int drop(int ifindex, const char *prefix, int len) {
    uint32_t mask = htonl(len ? ~0u << (32 - len) : 0), address = 0;
    if (prefix) inet_pton(AF_INET, prefix, &address);
    struct bpf_insn some[] = {
        LOAD(BPF_W, 2, 1, offsetof(struct xdp_md, data)),
        LOAD(BPF_W, 3, 1, offsetof(struct xdp_md, data_end)),
        CODE(BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = XDP_PASS),
        CODE(BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 4, .src_reg = 2),
        CODE(BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 4, .imm = 34),
        CODE(BPF_JMP | BPF_JGT | BPF_X, .dst_reg = 4, .src_reg = 3, .off = 7),
        LOAD(BPF_H, 4, 2, 12),
        CODE(BPF_JMP | BPF_JNE | BPF_K, .dst_reg = 4, .imm = htons(0x0800), .off = 5),
        LOAD(BPF_W, 4, 2, 30),
        CODE(BPF_ALU | BPF_AND | BPF_K, .dst_reg = 4, .imm = mask),
        CODE(BPF_ALU | BPF_MOV | BPF_K, .dst_reg = 5, .imm = address & mask),
        CODE(BPF_JMP | BPF_JNE | BPF_X, .dst_reg = 4, .src_reg = 5, .off = 1),
        CODE(BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = XDP_DROP),
        EXIT,
    };
    struct bpf_insn all[] = {CODE(BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = XDP_DROP), EXIT};
    int program = prefix ? load(some, sizeof some / sizeof *some) : load(all, sizeof all / sizeof *all);
    union bpf_attr link = {.link_create = {.prog_fd = program,
                                           .target_ifindex = ifindex,
                                           .attach_type = BPF_XDP,
                                           .flags = XDP_FLAGS_DRV_MODE}};
    if (bpf(BPF_LINK_CREATE, &link) < 0) return perror("BPF_LINK_CREATE"), 1;
    puts("attached");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {}
    return 0;
}

int main(int argc, char **argv) {
    int ifindex = argc > 2 ? if_nametoindex(argv[2]) : 0;
    if (argc > 2 && !ifindex) return perror(argv[2]), 1;
    if (argc == 6 && !strcmp(argv[1], "generate")) return generate(ifindex, argv + 3);
    if (argc == 3 && !strcmp(argv[1], "drop")) return drop(ifindex, NULL, 0);
    if (argc == 5 && !strcmp(argv[1], "drop")) return drop(ifindex, argv[3], atoi(argv[4]));
    return fprintf(stderr, "usage: xdptool generate IFACE DSTMAC DSTIP SECONDS | drop IFACE [PREFIX LEN]\n"), 2;
}
