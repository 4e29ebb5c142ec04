/* An XDP program for tests: drops frames to and from the addresses and prefixes in its maps, and counts what it decides. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#define htons(x) __builtin_bswap16(x)

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;

struct prefix {
	__u32 len;
	__u32 address;
};

struct seen {
	__u64 packets;
	__u64 first;
};

/* Frames by what was done with them: XDP's numbers. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 5);
	__type(key, __u32);
	__type(value, __u64);
} verdicts SEC(".maps");

/* Prefixes whose frames are dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u8);
} blocked SEC(".maps");

/* Who has sent, and since when. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, __u32);
	__type(value, struct seen);
} senders SEC(".maps");

/* The UDP port to which datagrams are dropped. */
__u16 blocked_port = 9;
__u64 datagrams;

static __attribute__((always_inline)) int decide(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (eth->h_proto != htons(ETH_P_IP))
		return XDP_PASS;
	struct iphdr *ip = (void *)(eth + 1);
	if ((void *)(ip + 1) > end)
		return XDP_ABORTED;
	__u32 source = ip->saddr;
	struct seen *seen = bpf_map_lookup_elem(&senders, &source);
	if (seen) {
		__sync_fetch_and_add(&seen->packets, 1);
	} else {
		struct seen first = { .packets = 1, .first = bpf_ktime_get_ns() };
		bpf_map_update_elem(&senders, &source, &first, BPF_ANY);
	}
	struct prefix prefix = { .len = 32, .address = ip->daddr };
	if (bpf_map_lookup_elem(&blocked, &prefix))
		return XDP_DROP;
	if (ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	struct udphdr *udp = (void *)ip + ip->ihl * 4;
	if ((void *)(udp + 1) > end)
		return XDP_ABORTED;
	__sync_fetch_and_add(&datagrams, 1);
	return udp->dest == htons(blocked_port) ? XDP_DROP : XDP_PASS;
}

SEC("xdp") int blocklist(struct xdp_md *ctx)
{
	__u32 verdict = decide(ctx);
	__u64 *count = bpf_map_lookup_elem(&verdicts, &verdict);

	if (count)
		__sync_fetch_and_add(count, 1);
	return verdict;
}

char _license[] SEC("license") = "Apache-2.0";
