/* The fields of struct rte_mbuf that src/mbuf.rs reads and writes, at the places where it does. */

#include <limits.h>
#include <stddef.h>

#include <rte_mbuf.h>

#define AT(field, offset, type)                                                                  \
    _Static_assert(offsetof(struct rte_mbuf, field) == (offset), "rte_mbuf." #field);            \
    _Static_assert(sizeof(((struct rte_mbuf *)0)->field) == sizeof(type), "size of rte_mbuf." #field)

AT(buf_addr, 0, void *);
AT(buf_iova, 8, uint64_t);
AT(data_off, 16, uint16_t);
AT(refcnt, 18, uint16_t);
AT(nb_segs, 20, uint16_t);
AT(port, 22, uint16_t);
AT(ol_flags, 24, uint64_t);
AT(packet_type, 32, uint32_t);
AT(pkt_len, 36, uint32_t);
AT(data_len, 40, uint16_t);
AT(vlan_tci, 42, uint16_t);
AT(hash.rss, 44, uint32_t);
AT(vlan_tci_outer, 52, uint16_t);
AT(buf_len, 54, uint16_t);
AT(pool, 56, void *);
AT(next, 64, void *);
AT(tx_offload, 72, uint64_t);
AT(shinfo, 80, void *);
AT(priv_size, 88, uint16_t);
_Static_assert(sizeof(struct rte_mbuf) == 128, "size of rte_mbuf");
_Static_assert(_Alignof(struct rte_mbuf) == 64, "alignment of rte_mbuf");

/* How src/mbuf.rs composes tx_offload. */
_Static_assert(RTE_MBUF_L2_LEN_OFS == 0, "l2_len");
_Static_assert(RTE_MBUF_L3_LEN_OFS == 7, "l3_len");
_Static_assert(RTE_MBUF_L4_LEN_OFS == 16, "l4_len");
_Static_assert(RTE_MBUF_TSO_SEGSZ_OFS == 24, "tso_segsz");
_Static_assert(RTE_MBUF_OUTL3_LEN_OFS == 40, "outer_l3_len");

/* Values that src/mbuf.rs has as constants. */
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "RTE_PKTMBUF_HEADROOM");
_Static_assert(RTE_MBUF_F_RX_RSS_HASH == 1ULL << 1, "RX_RSS_HASH");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_BAD == 1ULL << 3, "RX_L4_CKSUM_BAD");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_GOOD == 1ULL << 8, "RX_L4_CKSUM_GOOD");
_Static_assert(RTE_MBUF_F_RX_L4_CKSUM_NONE == (1ULL << 3 | 1ULL << 8), "RX_L4_CKSUM_NONE");
_Static_assert(RTE_MBUF_F_RX_LRO == 1ULL << 16, "RX_LRO");
_Static_assert(RTE_MBUF_F_TX_TCP_SEG == 1ULL << 50, "TX_TCP_SEG");
_Static_assert(RTE_MBUF_F_TX_UDP_SEG == 1ULL << 42, "TX_UDP_SEG");
_Static_assert(RTE_MBUF_F_TX_TCP_CKSUM == 1ULL << 52, "TX_TCP_CKSUM");
_Static_assert(RTE_MBUF_F_TX_SCTP_CKSUM == 2ULL << 52, "TX_SCTP_CKSUM");
_Static_assert(RTE_MBUF_F_TX_UDP_CKSUM == 3ULL << 52, "TX_UDP_CKSUM");
_Static_assert(RTE_MBUF_F_TX_L4_MASK == 3ULL << 52, "TX_L4_MASK");
_Static_assert(RTE_MBUF_F_TX_IP_CKSUM == 1ULL << 54, "TX_IP_CKSUM");
_Static_assert(RTE_MBUF_F_TX_IPV4 == 1ULL << 55, "TX_IPV4");
_Static_assert(RTE_MBUF_F_TX_IPV6 == 1ULL << 56, "TX_IPV6");
_Static_assert(RTE_MBUF_F_INDIRECT == 1ULL << 62, "INDIRECT");
_Static_assert(RTE_MBUF_F_EXTERNAL == 1ULL << 61, "EXTERNAL");
