//! What `shim/vhost.c` makes callable.

use std::ffi::c_int;

functions! {
    /// Descriptors of a guest's ring; 0 where it has none yet.
    pub fn weir_vhost_vring_size(vid: c_int, ring: u16) -> u16;
}
