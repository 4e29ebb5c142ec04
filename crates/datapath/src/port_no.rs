//! Numbers of ports.

/// A datapath port number. Assigned by the datapath, never reused while the port exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNo(pub u32);
