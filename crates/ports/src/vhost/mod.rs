//! vhost-user: ports whose other side is a virtual machine's network card, or another process that speaks
//! virtio (`net_virtio_user` of DPDK). The names of types, options and counters are those of OVS.
//!
//! librte_vhost speaks the protocol on a thread of its own and calls [`driver`] when a guest comes, goes,
//! or enables a queue; [`guest`] is what the port knows of it. Workers receive ([`rx`]) and send ([`tx`])
//! in the guest's rings. [`presence`] makes sure that a guest is only given up when no worker is in one
//! of its rings. [`counters`] counts, [`socket`] looks after the socket's path.
//!
//! From the guest's view everything is mirrored: what it sends is received here.

mod kinds;

mod counters;
mod driver;
pub mod fuzz;
mod guest;
mod port;
mod presence;
mod rx;
mod socket;
mod tx;

use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use crate::dpdk;

pub use kinds::{CLIENT, SERVER};

/// Settings of all vhost-user ports, in the words of `other_config` (ovs-vswitchd.conf.db(5)).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Settings {
    /// The directory of the sockets that Weir makes: the run directory, with `vhost-sock-dir` behind it.
    pub sock_dir: PathBuf,
    /// `vhost-iommu-support`: guests may protect their memory by a virtual IOMMU.
    pub iommu: bool,
    /// `vhost-postcopy-support`: guests may be migrated in the way that fetches memory on demand.
    pub postcopy: bool,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

impl Settings {
    /// What `settings` say, for a process with this run directory.
    fn new(settings: &dpdk::Settings, rundir: &Path) -> Settings {
        let is_true = |text: &Option<String>| text.as_deref() == Some("true");
        let below = settings.vhost_sock_dir.as_deref().map(Path::new);
        let within =
            |path: &&Path| path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let mut sock_dir = rundir.to_path_buf();
        match below {
            Some(path) if within(&path) => sock_dir.push(path),
            Some(path) => tracing::error!(
                target: "dpdk",
                "vhost-sock-dir {path:?} is not within {}, and has no effect",
                rundir.display()
            ),
            None => {}
        }
        let mut postcopy = is_true(&settings.vhost_postcopy);
        if postcopy && memory_is_locked() {
            tracing::warn!(target: "dpdk", "vhost-postcopy-support has no effect: the memory of this process is locked");
            postcopy = false;
        }
        Settings { sock_dir, iommu: is_true(&settings.vhost_iommu), postcopy }
    }
}

/// Whether this process has locked its memory (mlockall(2)).
fn memory_is_locked() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    locked.is_some_and(|kib| kib.trim().trim_end_matches("kB").trim() != "0")
}

/// Says how vhost-user ports are to be, in a process with this run directory. The first call with DPDK
/// wanted counts, as for DPDK itself.
pub fn configure(settings: &dpdk::Settings, rundir: &Path) {
    if settings.init == dpdk::Init::Off || SETTINGS.get().is_some() {
        return;
    }
    let settings = Settings::new(settings, rundir);
    let on = |on: bool| if on { "enabled" } else { "disabled" };
    tracing::info!(target: "dpdk", "IOMMU support for vhost-user {}", on(settings.iommu));
    tracing::info!(target: "dpdk", "POSTCOPY support for vhost-user {}", on(settings.postcopy));
    let _ = SETTINGS.set(settings);
}

/// How vhost-user ports are.
fn settings() -> &'static Settings {
    SETTINGS.get_or_init(Settings::default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_stay_within_the_run_directory() {
        let of = |dir: &str| {
            let settings = dpdk::Settings { vhost_sock_dir: Some(dir.into()), ..Default::default() };
            Settings::new(&settings, Path::new("/run/x")).sock_dir
        };
        assert_eq!(of("vms/a"), Path::new("/run/x/vms/a"));
        for outside in ["../y", "a/../../y", "/etc"] {
            assert_eq!(of(outside), Path::new("/run/x"), "{outside}");
        }
    }

    #[test]
    fn what_is_asked_for_is_on() {
        let settings = dpdk::Settings {
            vhost_iommu: Some("true".into()),
            vhost_postcopy: Some("false".into()),
            ..Default::default()
        };
        let settings = Settings::new(&settings, Path::new("/run"));
        assert_eq!(settings, Settings { sock_dir: "/run".into(), iommu: true, postcopy: false });
    }
}
