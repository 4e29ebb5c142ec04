/* Two XDP programs for tests: one drops, one passes. */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

SEC("xdp/first") int first(struct xdp_md *ctx)
{
	return XDP_DROP;
}

SEC("xdp/second") int second(struct xdp_md *ctx)
{
	return XDP_PASS;
}
