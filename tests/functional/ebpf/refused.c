/* XDP programs for tests that are wrong, each in one way. */
#include <linux/bpf.h>

/* Each of them uses a part of what is here. */
#pragma clang diagnostic ignored "-Wunused"

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)BPF_FUNC_redirect;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} values SEC(".maps");

#ifdef MAP
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} others SEC(".maps");
#endif

static __attribute__((noinline)) int function(int number)
{
	asm volatile("%0 += 1" : "+r"(number));
	return number;
}

SEC("xdp") int wrong(struct xdp_md *ctx)
{
	unsigned char *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 key = 0;

	if (data + 14 > end)
		return XDP_PASS;
#if defined(OUTSIDE)
	return data[14] == 1 ? XDP_DROP : XDP_PASS;
#elif defined(UNCHECKED)
	return *(__u64 *)bpf_map_lookup_elem(&values, &key);
#elif defined(HELPER)
	return bpf_redirect(1, 0);
#elif defined(ENDLESS)
	while (*(volatile unsigned char *)data != 7)
		;
	return XDP_PASS;
#elif defined(WRITE)
	data[0] = 1;
	return XDP_PASS;
#elif defined(FUNCTION)
	return function(data[0]);
#else
	return bpf_map_lookup_elem(&values, &key) ? XDP_PASS : XDP_DROP;
#endif
}
