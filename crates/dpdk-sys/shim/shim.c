/* DPDK's inline functions, as functions; and what only C can do. */

#define _GNU_SOURCE
#include <stdio.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

/* Fills `mbufs` with `count` fresh ones, or with none: 0, or a negative errno. As rte_pktmbuf_alloc_bulk(), but
 * for the calling thread's number, which that reads itself: from here, it would be a call for each allocation,
 * since the library that has it is loaded at run time. */
int weir_pktmbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned count, unsigned lcore)
{
    int error = rte_mempool_generic_get(pool, (void **)mbufs, count, rte_mempool_default_cache(pool, lcore));

    if (error != 0)
        return error;
    for (unsigned i = 0; i < count; i++)
        rte_pktmbuf_reset(mbufs[i]);
    return 0;
}

/* Whether an mbuf of this pool has one owner, one segment, and its own buffer. */
static inline int is_plain(const struct rte_mbuf *mbuf, const struct rte_mempool *pool)
{
    return mbuf->pool == pool && rte_mbuf_refcnt_read(mbuf) == 1 && mbuf->nb_segs == 1 && RTE_MBUF_DIRECT(mbuf);
}

/* Gives `count` mbufs back, with all of their segments. As rte_pktmbuf_free_bulk(), but what most are goes back as it
 * is: that looks at the second cache line of each for a segment that a single one never has. */
void weir_pktmbuf_free_bulk(struct rte_mbuf **mbufs, unsigned count, unsigned lcore)
{
    struct rte_mempool *pool = count > 0 ? mbufs[0]->pool : NULL;
    unsigned plain = 0;

    while (plain < count && is_plain(mbufs[plain], pool))
        plain++;
    if (plain > 0)
        rte_mempool_generic_put(pool, (void **)mbufs, plain, rte_mempool_default_cache(pool, lcore));
    if (plain < count)
        rte_pktmbuf_free_bulk(mbufs + plain, count - plain);
}

void weir_pktmbuf_free(struct rte_mbuf *mbuf)
{
    rte_pktmbuf_free(mbuf);
}

/* Copies a chain's `length` bytes from its start into `to`, which has room for them. */
void weir_pktmbuf_read(const struct rte_mbuf *mbuf, void *to, uint32_t length)
{
    const void *at = rte_pktmbuf_read(mbuf, 0, length, to);

    if (at != NULL && at != to)
        memcpy(to, at, length);
}

/* Whether every element is back. */
int weir_mempool_full(const struct rte_mempool *pool)
{
    return rte_mempool_full(pool);
}

/* Number of elements. */
unsigned weir_mempool_size(const struct rte_mempool *pool)
{
    return pool->size;
}

/* The driver's functions of a device. */
const struct rte_eth_fp_ops *weir_eth_fp_ops(uint16_t port)
{
    return &rte_eth_fp_ops[port];
}

/* The calling thread's rte_errno. */
int weir_errno(void)
{
    return rte_errno;
}

/* The calling thread's number; LCORE_ID_ANY where DPDK does not know it. */
unsigned weir_lcore_id(void)
{
    return rte_lcore_id();
}

/* Takes messages: their level (RTE_LOG_*), first byte and length. Any thread calls it. */
typedef void weir_log_sink(uint32_t level, const char *text, size_t length);

static ssize_t write_log(void *cookie, const char *text, size_t length)
{
    weir_log_sink *sink = (weir_log_sink *)cookie;

    sink((uint32_t)rte_log_cur_msg_loglevel(), text, length);
    return (ssize_t)length;
}

/* Has DPDK log to `sink`, for ever; 0, or -1 with errno. */
int weir_log_to(weir_log_sink *sink)
{
    cookie_io_functions_t functions = { .write = write_log };
    FILE *stream = fopencookie((void *)sink, "w", functions);

    if (stream == NULL)
        return -1;
    /* Whole messages, at once. */
    setvbuf(stream, NULL, _IONBF, 0);
    return rte_openlog_stream(stream);
}
