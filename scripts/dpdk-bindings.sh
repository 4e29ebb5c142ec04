#!/usr/bin/env bash
# Makes crates/dpdk-sys/src/bindings.rs and shim/layout.c from the headers of libdpdk 22.11.
# Needs bindgen (cargo install bindgen-cli), clang and libdpdk-dev. Both files are committed.
set -euo pipefail
cd "$(dirname "$0")/../crates/dpdk-sys"

# All of them are looked up when DPDK is loaded: only what Weir calls.
functions=(
    rte_eal_init rte_mp_disable rte_version rte_strerror rte_log_set_level_pattern rte_log_dump
    rte_lcore_dump rte_thread_register rte_thread_unregister rte_malloc_dump_stats
    rte_mempool_free rte_mempool_avail_count rte_mempool_dump rte_mempool_list_dump
    rte_pktmbuf_pool_create
    rte_dev_probe rte_dev_remove rte_dev_bus_info rte_dev_bus rte_bus_name
    rte_eth_dev_info_get rte_eth_dev_configure rte_eth_dev_start rte_eth_dev_stop rte_eth_dev_close
    rte_eth_dev_socket_id rte_eth_dev_set_mtu rte_eth_dev_set_link_up rte_eth_dev_set_link_down
    rte_eth_dev_flow_ctrl_get rte_eth_dev_flow_ctrl_set rte_eth_dev_callback_register
    rte_eth_dev_adjust_nb_rx_tx_desc rte_eth_rx_queue_setup rte_eth_tx_queue_setup rte_eth_link_get_nowait
    rte_eth_macaddr_get rte_eth_dev_default_mac_addr_set rte_eth_promiscuous_enable rte_eth_allmulticast_enable
    rte_eth_stats_get rte_eth_xstats_get_by_id rte_eth_xstats_get_names rte_eth_xstats_get
    rte_eth_iterator_init rte_eth_iterator_next rte_eth_iterator_cleanup rte_eth_find_next
    rte_vhost_driver_{register,unregister,start,callback_register,disable_features}
    rte_vhost_{dequeue,enqueue}_burst rte_vhost_enable_guest_notification rte_vhost_vring_stats_get{,_names}
    rte_vhost_get_{ifname,mtu,negotiated_features,numa_node,vring_num} rte_vhost_rx_queue_count
)
types=(
    rte_eth_conf rte_eth_dev_info rte_eth_rxconf rte_eth_txconf rte_eth_link rte_eth_stats rte_eth_xstat
    rte_eth_xstat_name rte_eth_fc_conf rte_eth_event_type rte_ether_addr rte_dev_iterator rte_eth_dev_owner
    rte_malloc_socket_stats rte_eth_fp_ops 'virtio_net_hdr.*'
)
constants=(
    'RTE_ETH_(RX|TX)_OFFLOAD_.*' 'RTE_ETH_RSS_.*' 'RTE_ETH_LINK_.*' 'RTE_ETH_SPEED_NUM_.*' RTE_ETH_QUEUE_STATE_STARTED
    'RTE_ETH_NAME_MAX_LEN' 'RTE_ETH_XSTATS_NAME_SIZE' 'RTE_ETH_MAX_OWNER_NAME_LEN' RTE_MAX_ETHPORTS
    'RTE_LOG_(EMERG|ALERT|CRIT|ERR|WARNING|NOTICE|INFO|DEBUG)' RTE_MEMPOOL_CACHE_MAX_SIZE RTE_MAX_LCORE LCORE_ID_ANY
    'RTE_VHOST_.*' 'VHOST_.*' 'VIRTIO_NET_.*' 'VIRTIO_F_.*' 'VIRTIO_RING_F_.*' 'VIRTIO_RXQ' 'VIRTIO_TXQ'
    RTE_DEV_NAME_MAX_LEN SOCKET_ID_ANY
)
# Macros that bindgen cannot read by itself.
values=(
    RTE_ETH_RSS_IP RTE_ETH_RSS_TCP RTE_ETH_RSS_UDP
    RTE_ETH_RX_OFFLOAD_{IPV4,UDP,TCP}_CKSUM RTE_ETH_RX_OFFLOAD_{RSS_HASH,SCATTER,TCP_LRO}
    RTE_ETH_TX_OFFLOAD_{IPV4,UDP,TCP,SCTP}_CKSUM RTE_ETH_TX_OFFLOAD_{TCP_TSO,UDP_TSO,MULTI_SEGS,MBUF_FAST_FREE}
)
either() { local IFS='|'; echo "($*)"; }

headers=$(mktemp --suffix=.h)
trap 'rm -f "$headers"' EXIT
cat >"$headers" <<'HEADERS'
#include <stdio.h>
#include <rte_bus.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>
#include <rte_vhost.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>
HEADERS
for value in "${values[@]}"; do
    echo "static const uint64_t weir_$value = $value;" >>"$headers"
done

# shellcheck disable=SC2046
bindgen "$headers" --output src/bindings.rs --rust-target 1.85 --rust-edition 2024 --no-doc-comments \
    --use-core --no-prepend-enum-name --default-enum-style consts \
    --allowlist-function "$(either "${functions[@]}")" --allowlist-var "$(either "${constants[@]}" 'weir_.*')" \
    --allowlist-type "$(either "${types[@]}")" \
    --blocklist-type rte_mbuf --blocklist-type FILE --blocklist-type _IO_FILE \
    --opaque-type 'rte_(mempool|device|bus|driver|devargs|class)' --opaque-type 'rte_eth_(rx|tx)seg.*' \
    --opaque-type rte_eth_rxseg --opaque-type 'rte_vhost_inflight.*|rte_vhost_ring_inflight|rte_vhost_vring' \
    --raw-line 'pub use crate::mbuf::rte_mbuf;' --raw-line 'pub type FILE = core::ffi::c_void;' \
    -- $(pkg-config --cflags libdpdk)

# The functions are not linked with, but looked up (src/functions.rs).
perl -0pi -e '
    my $functions = "";
    $functions .= $1 while s/^unsafe extern "C" \{\n(    pub fn .*?;\n)\}\n//ms;
    die "a declaration that functions! does not take" if /extern "C" \{/ || $functions =~ /\.\.\./;
    $_ .= "functions! {\n$functions}\n";
' src/bindings.rs

# What bindgen asserts of its structures in Rust, asserted of the headers in C.
{
    echo '/* Made by scripts/dpdk-bindings.sh: src/bindings.rs, as the headers have to have it. */'
    echo
    grep '^#include' "$headers"
    echo '#include <stddef.h>'
    echo
    perl -0ne 'while (/\["Size of (\w+)"\]\s*\[[^\]]*? - (\d+)usize\];/g) { print "_Static_assert(sizeof(struct $1) == $2, \"size of $1\");\n" }
               while (/\["Offset of field: (\w+)::(\w+)"\]\s*\[[^\]]*? - (\d+)usize\];/g) { my ($s, $f, $n) = ($1, $2, $3); $f =~ s/_$//; print "_Static_assert(offsetof(struct $s, $f) == $n, \"$s.$f\");\n" }' \
        src/bindings.rs | grep -v '__bindgen\|rte_eth_rxseg)'
    perl -ne 'print "_Static_assert($1 == $2ULL, \"$1\");\n" if /^pub const weir_(\w+): u64 = (\d+);/' src/bindings.rs
} >shim/layout.c
sed -i 's/^pub const weir_/pub const /' src/bindings.rs
