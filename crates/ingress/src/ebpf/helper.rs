//! The functions that programs can call (bpf-helpers(7)).

/// A helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helper {
    /// `bpf_map_lookup_elem`: the value of a key, or null.
    MapLookup,
    /// `bpf_map_update_elem`: sets the value of a key.
    MapUpdate,
    /// `bpf_map_delete_elem`: removes a key.
    MapDelete,
    /// `bpf_ktime_get_ns`: nanoseconds of the switch's clock, which never goes back; those of the batch of frames.
    Time,
}

/// Names of the first helpers, by their numbers from 1.
const NAMES: &[&str] = &[
    "bpf_map_lookup_elem",
    "bpf_map_update_elem",
    "bpf_map_delete_elem",
    "bpf_probe_read",
    "bpf_ktime_get_ns",
    "bpf_trace_printk",
    "bpf_get_prandom_u32",
    "bpf_get_smp_processor_id",
    "bpf_skb_store_bytes",
    "bpf_l3_csum_replace",
    "bpf_l4_csum_replace",
    "bpf_tail_call",
    "bpf_clone_redirect",
];

/// Names of later ones that XDP programs use.
const LATER: &[(i32, &str)] = &[
    (23, "bpf_redirect"),
    (25, "bpf_perf_event_output"),
    (28, "bpf_csum_diff"),
    (44, "bpf_xdp_adjust_head"),
    (51, "bpf_redirect_map"),
    (54, "bpf_xdp_adjust_meta"),
    (65, "bpf_xdp_adjust_tail"),
    (69, "bpf_fib_lookup"),
    (84, "bpf_sk_lookup_tcp"),
    (85, "bpf_sk_lookup_udp"),
    (93, "bpf_spin_lock"),
    (94, "bpf_spin_unlock"),
    (125, "bpf_ktime_get_boot_ns"),
    (130, "bpf_ringbuf_output"),
    (131, "bpf_ringbuf_reserve"),
    (181, "bpf_loop"),
    (188, "bpf_xdp_get_buff_len"),
    (189, "bpf_xdp_load_bytes"),
    (190, "bpf_xdp_store_bytes"),
];

impl Helper {
    /// What there is, for error messages.
    pub const AVAILABLE: &str =
        "bpf_map_lookup_elem, bpf_map_update_elem, bpf_map_delete_elem and bpf_ktime_get_ns are available";

    /// The helper of a number.
    ///
    /// # Errors
    /// The name or number of one that does not exist here.
    pub fn from_number(number: i32) -> Result<Helper, String> {
        match number {
            1 => Ok(Helper::MapLookup),
            2 => Ok(Helper::MapUpdate),
            3 => Ok(Helper::MapDelete),
            5 => Ok(Helper::Time),
            _ => {
                let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
                let first = index.and_then(|index| NAMES.get(index).copied());
                let later = || LATER.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
                Err(first.or_else(later).map_or_else(|| number.to_string(), str::to_owned))
            }
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Helper::MapLookup => "bpf_map_lookup_elem",
            Helper::MapUpdate => "bpf_map_update_elem",
            Helper::MapDelete => "bpf_map_delete_elem",
            Helper::Time => "bpf_ktime_get_ns",
        }
    }
}
