//! How DPDK is to be started, in the words of `other_config` (ovs-vswitchd.conf.db(5)).

/// Whether DPDK is to be started (`dpdk-init`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Init {
    /// Not at all.
    #[default]
    Off,
    /// Yes; that it fails is an error.
    On,
    /// If it can be; that it fails is no error.
    Try,
}

impl Init {
    /// Reads a value of `dpdk-init`, in upper or lower case; anything else is `Off`, as in OVS.
    pub fn from_text(text: &str) -> Init {
        match () {
            () if text.eq_ignore_ascii_case("true") => Init::On,
            () if text.eq_ignore_ascii_case("try") => Init::Try,
            () => Init::Off,
        }
    }

    /// The value of `dpdk-init`.
    pub fn name(self) -> &'static str {
        match self {
            Init::Off => "false",
            Init::On => "true",
            Init::Try => "try",
        }
    }
}

/// How DPDK is to be started. Read once: what changes afterwards counts from the next start.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Settings {
    /// `dpdk-init`.
    pub init: Init,
    /// `dpdk-lcore-mask`: cores of DPDK's own threads, in hexadecimal.
    pub lcore_mask: Option<String>,
    /// `dpdk-socket-mem`: MiB of hugepages to take at the start from each NUMA node, with commas between.
    pub socket_mem: Option<String>,
    /// `dpdk-socket-limit`: the most MiB to take from each NUMA node.
    pub socket_limit: Option<String>,
    /// `dpdk-alloc-mem`: MiB to take at the start, from any node. Without hugepages: all there is.
    pub alloc_mem: Option<String>,
    /// `dpdk-hugepage-dir`: where hugetlbfs is mounted.
    pub hugepage_dir: Option<String>,
    /// `dpdk-extra`: further options of EAL. They win over all others.
    pub extra: Option<String>,
    /// `vhost-sock-dir`: the directory, within the run directory, of sockets that vhost-user ports make.
    pub vhost_sock_dir: Option<String>,
    /// `vhost-iommu-support`: "true" or not.
    pub vhost_iommu: Option<String>,
    /// `vhost-postcopy-support`: "true" or not.
    pub vhost_postcopy: Option<String>,
}

impl Settings {
    /// Each setting of text by its name in `other_config`.
    pub fn by_name(&mut self) -> [(&'static str, &mut Option<String>); 9] {
        [
            ("dpdk-lcore-mask", &mut self.lcore_mask),
            ("dpdk-socket-mem", &mut self.socket_mem),
            ("dpdk-socket-limit", &mut self.socket_limit),
            ("dpdk-alloc-mem", &mut self.alloc_mem),
            ("dpdk-hugepage-dir", &mut self.hugepage_dir),
            ("dpdk-extra", &mut self.extra),
            ("vhost-sock-dir", &mut self.vhost_sock_dir),
            ("vhost-iommu-support", &mut self.vhost_iommu),
            ("vhost-postcopy-support", &mut self.vhost_postcopy),
        ]
    }
}
