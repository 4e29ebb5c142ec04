//! The declaration of a port.

use std::collections::BTreeMap;

use crate::Mac;

/// Declaration of a port, as a row of the Interface table or a `[[port]]` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSpec {
    /// Name of the port; for ports on kernel interfaces also the interface's.
    pub name: String,
    /// Kind, one of [`KINDS`](crate::registry::KINDS). Empty means "system".
    pub kind: String,
    /// `options:NAME=VALUE` pairs.
    pub options: BTreeMap<String, String>,
    /// MTU to set, in bytes of L3 packet.
    pub mtu: Option<u32>,
    /// Ethernet address to set.
    pub mac: Option<Mac>,
}

impl PortSpec {
    /// A declaration without options.
    pub fn new(name: &str, kind: &str) -> PortSpec {
        PortSpec { name: name.into(), kind: kind.into(), ..PortSpec::default() }
    }

    /// The same with options added.
    pub fn with(mut self, options: &[(&str, &str)]) -> PortSpec {
        self.options.extend(options.iter().map(|(k, v)| (k.to_string(), v.to_string())));
        self
    }
}
