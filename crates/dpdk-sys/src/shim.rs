//! What `shim/shim.c` makes callable.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::{rte_eth_fp_ops, rte_mbuf, rte_mempool};

/// Takes a message of DPDK: its level (`RTE_LOG_*`), first byte, length in bytes. Any thread calls it.
pub type LogSink = unsafe extern "C" fn(level: u32, text: *const c_char, length: usize);

functions! {
    /// Fills `mbufs` with `count` fresh ones, or with none: 0, or a negative errno. `lcore` is the calling thread's
    /// number, whose share of the pool is used; `LCORE_ID_ANY` for none.
    pub fn weir_pktmbuf_alloc_bulk(
        pool: *mut rte_mempool,
        mbufs: *mut *mut rte_mbuf,
        count: c_uint,
        lcore: c_uint,
    ) -> c_int;
    /// Gives `count` mbufs back, each with all of its segments. `lcore` as for [`weir_pktmbuf_alloc_bulk`].
    pub fn weir_pktmbuf_free_bulk(mbufs: *mut *mut rte_mbuf, count: c_uint, lcore: c_uint);
    /// Gives an mbuf back with all of its segments.
    pub fn weir_pktmbuf_free(mbuf: *mut rte_mbuf);
    /// Copies `length` bytes of a chain, which are there, into `to`, which has room for them.
    pub fn weir_pktmbuf_read(mbuf: *const rte_mbuf, to: *mut c_void, length: u32);
    /// Whether every element of a pool is back.
    pub fn weir_mempool_full(pool: *const rte_mempool) -> c_int;
    /// Number of elements of a pool.
    pub fn weir_mempool_size(pool: *const rte_mempool) -> c_uint;
    /// The driver's functions of the device `port`, which is less than `RTE_MAX_ETHPORTS`.
    pub fn weir_eth_fp_ops(port: u16) -> *const rte_eth_fp_ops;
    /// The calling thread's `rte_errno`.
    pub fn weir_errno() -> c_int;
    /// The calling thread's number; `LCORE_ID_ANY` where DPDK does not know it.
    pub fn weir_lcore_id() -> c_uint;
    /// Has DPDK log to `sink`, for ever; 0, or -1 with errno.
    pub fn weir_log_to(sink: LogSink) -> c_int;
}
