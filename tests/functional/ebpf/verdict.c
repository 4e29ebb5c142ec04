/* An XDP program for tests: says of all frames VERDICT. */
#include <linux/bpf.h>

__attribute__((section("xdp"), used)) int verdict(struct xdp_md *ctx)
{
	return VERDICT;
}
