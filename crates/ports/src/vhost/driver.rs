//! What is between a port and librte_vhost: registration of the socket, and the calls that come back from
//! the library's thread.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use dpdk_sys::rte_vhost_device_ops;
use parking_lot::Mutex;

use super::guest::Guest;
use super::settings;
use crate::dpdk::log;

/// The guests by the path of their socket, which is all that the library says about whom it means. Never
/// locked while the library is called.
static GUESTS: LazyLock<Mutex<HashMap<CString, Arc<Guest>>>> = LazyLock::new(Mutex::default);

struct Calls(rte_vhost_device_ops);

// SAFETY: the table holds functions and null pointers only, and nobody writes to it.
unsafe impl Sync for Calls {}

static CALLS: Calls = Calls(rte_vhost_device_ops {
    new_device: Some(new_device),
    destroy_device: Some(destroy_device),
    vring_state_changed: Some(vring_state_changed),
    features_changed: Some(features_changed),
    new_connection: None,
    destroy_connection: Some(destroy_connection),
    guest_notified: None,
    reserved: [std::ptr::null_mut(); 1],
});

/// Features that the library offers and Weir does not: it has no word for fragments of UDP that are
/// still to be cut.
const REFUSED: u64 = 1 << dpdk_sys::VIRTIO_NET_F_HOST_UFO | 1 << dpdk_sys::VIRTIO_NET_F_GUEST_UFO;

/// A socket that librte_vhost serves. Dropping it ends that; no worker uses its guest then.
pub struct Registration(CString);

impl Registration {
    /// Serves the guest's socket.
    pub fn new(guest: &Arc<Guest>) -> Result<Registration, String> {
        let path = c_path(&guest.socket)?;
        {
            let mut guests = GUESTS.lock();
            if let Some(other) = guests.get(&path) {
                return Err(format!("the socket {} is used by port {}", guest.socket.display(), other.state.name));
            }
            guests.insert(path.clone(), guest.clone());
        }
        let (result, complaints) = log::listen(|| serve(&path, guest.client));
        result.map(|()| Registration(path.clone())).map_err(|what| {
            GUESTS.lock().remove(&path);
            let why = complaints.last().map_or(String::new(), |complaint| format!(": {complaint}"));
            format!("librte_vhost cannot {what} the socket {}{why}", guest.socket.display())
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the path is a string. The library takes a guest away by `destroy_device` first.
        if unsafe { dpdk_sys::rte_vhost_driver_unregister(self.0.as_ptr()) } != 0 {
            tracing::error!(target: "netdev_dpdk", "librte_vhost does not give up the socket {:?}", self.0);
        }
        GUESTS.lock().remove(&self.0);
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| "the path of the socket has a zero in it".into())
}

/// Registers the socket and starts; else what could not be done.
fn serve(path: &CStr, client: bool) -> Result<(), &'static str> {
    let path = path.as_ptr();
    let done = |result: c_int| result == 0;
    // SAFETY: EAL is initialised, since a port is being opened; the path is a string, which is copied, and
    // the table of calls lives for ever.
    unsafe {
        if !done(dpdk_sys::rte_vhost_driver_register(path, flags(client))) {
            return Err("register");
        }
        let started = done(dpdk_sys::rte_vhost_driver_callback_register(path, &CALLS.0))
            && done(dpdk_sys::rte_vhost_driver_disable_features(path, REFUSED))
            && done(dpdk_sys::rte_vhost_driver_start(path));
        if !started {
            dpdk_sys::rte_vhost_driver_unregister(path);
            return Err("serve");
        }
    }
    Ok(())
}

fn flags(client: bool) -> u64 {
    let settings = settings();
    let flag = |wanted: bool, bit: u64| if wanted { bit } else { 0 };
    // Every frame lies in one piece: in an mbuf, or, where that is too small, behind one.
    u64::from(dpdk_sys::RTE_VHOST_USER_LINEARBUF_SUPPORT)
        | u64::from(dpdk_sys::RTE_VHOST_USER_EXTBUF_SUPPORT)
        | u64::from(dpdk_sys::RTE_VHOST_USER_NET_COMPLIANT_OL_FLAGS)
        | u64::from(dpdk_sys::RTE_VHOST_USER_NET_STATS_ENABLE)
        | flag(client, dpdk_sys::RTE_VHOST_USER_CLIENT.into())
        | flag(settings.iommu, dpdk_sys::RTE_VHOST_USER_IOMMU_SUPPORT.into())
        | flag(settings.postcopy, dpdk_sys::RTE_VHOST_USER_POSTCOPY_SUPPORT.into())
}

/// Runs `f` on the guest that the library calls `vid`. A panic must not reach C.
fn with_guest(vid: c_int, f: impl FnOnce(&Guest) + std::panic::UnwindSafe) -> c_int {
    let done = std::panic::catch_unwind(|| {
        let guest = find(vid);
        if let Some(guest) = &guest {
            f(guest);
        }
        guest.is_some()
    });
    if matches!(done, Ok(true)) { 0 } else { -1 }
}

fn find(vid: c_int) -> Option<Arc<Guest>> {
    let mut path = [0 as c_char; libc::PATH_MAX as usize];
    // SAFETY: called within a call of the library about this guest, which is there; the length is that of
    // the array.
    if unsafe { dpdk_sys::rte_vhost_get_ifname(vid, path.as_mut_ptr(), path.len()) } != 0 {
        return None;
    }
    // SAFETY: the library ends the path with a zero.
    let path = unsafe { CStr::from_ptr(path.as_ptr()) };
    GUESTS.lock().get(path).cloned()
}

unsafe extern "C" fn new_device(vid: c_int) -> c_int {
    with_guest(vid, |guest| {
        let mut features = 0;
        // SAFETY: the guest is there, with as many rings as it says. No ring is locked now.
        let rings = unsafe {
            dpdk_sys::rte_vhost_get_negotiated_features(vid, &mut features);
            let rings = dpdk_sys::rte_vhost_get_vring_num(vid);
            // Queues are polled: the guest need not tell of what it has put there.
            for ring in 0..rings {
                dpdk_sys::rte_vhost_enable_guest_notification(vid, ring, 0);
            }
            rings
        };
        guest.connected(vid, features, rings / 2);
        tracing::info!(target: "netdev_dpdk", "vHost Device '{}' has been added", guest.socket.display());
    })
}

unsafe extern "C" fn destroy_device(vid: c_int) {
    with_guest(vid, |guest| {
        guest.disconnected(vid);
        tracing::info!(target: "netdev_dpdk", "vHost Device '{}' has been removed", guest.socket.display());
    });
}

unsafe extern "C" fn vring_state_changed(vid: c_int, ring: u16, enable: c_int) -> c_int {
    with_guest(vid, |guest| {
        guest.vring_changed(ring, enable != 0);
        let (direction, state) =
            (if ring % 2 == 1 { "rx" } else { "tx" }, if enable != 0 { "enabled" } else { "disabled" });
        tracing::info!(
            target: "netdev_dpdk",
            "State of queue {ring} ( {direction}_qid {} ) of vhost device '{}' changed to '{state}'",
            ring / 2,
            guest.socket.display(),
        );
    })
}

unsafe extern "C" fn features_changed(vid: c_int, features: u64) -> c_int {
    with_guest(vid, |guest| guest.features_changed(features))
}

unsafe extern "C" fn destroy_connection(vid: c_int) {
    with_guest(vid, |guest| {
        guest.reset_queues();
        tracing::info!(target: "netdev_dpdk", "vHost Device '{}' connection has been destroyed", guest.socket.display());
    });
}
