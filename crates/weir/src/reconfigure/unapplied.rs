//! What of a configuration is not in force after its steps were taken, in words.

use super::{Failure, ReconfigureStep};
use crate::config::origins::{Origins, port_key};

/// What of the configuration is not in force.
#[derive(Clone, Debug, Default)]
pub struct Unapplied {
    /// Interfaces whose ports could not be opened or changed.
    pub ports: Vec<FailedPort>,
    /// Other steps that failed, in words.
    pub errors: Vec<String>,
}

/// An interface whose port could not be opened or changed.
#[derive(Clone, Debug)]
pub struct FailedPort {
    /// Bridge.
    pub bridge: String,
    /// Name of the interface.
    pub name: String,
    /// Type; empty where the device is not what failed.
    pub kind: String,
    /// Why.
    pub error: String,
}

impl FailedPort {
    /// With the place in the file that asked for it; of a database, in words that programs look for in OVS's log.
    pub fn describe(&self, origins: &Origins) -> String {
        match origins.are_in_file() || self.kind.is_empty() {
            true => origins.error(&port_key(&self.bridge, &self.name), &self.error).to_string(),
            false => self.in_words(),
        }
    }

    /// What is wrong with the interface; in OVS's words where the device could not be opened.
    pub fn in_words(&self) -> String {
        let FailedPort { name, kind, error, .. } = self;
        if kind.is_empty() {
            return error.clone();
        }
        let why = error.strip_prefix(name).and_then(|e| e.strip_prefix(": ")).unwrap_or(error);
        format!("could not open network device {name} ({why})")
    }
}

/// The interfaces whose devices a step opens.
pub fn opened_by(step: &ReconfigureStep) -> Vec<&str> {
    match step {
        ReconfigureStep::AddPort { wanted, .. } => wanted.interfaces.keys().map(String::as_str).collect(),
        ReconfigureStep::AddLocal { bridge, .. } => vec![bridge],
        _ => Vec::new(),
    }
}

/// A failure with the place in the configuration that asked for it.
pub fn describe(failure: &Failure, origins: &Origins) -> String {
    if !origins.are_in_file() {
        let failed = failed_ports(failure);
        let is_named = |port: &&FailedPort| failure.error.starts_with(&format!("{}: ", port.name));
        if let Some(port) = failed.iter().find(is_named).or(failed.first()).filter(|port| !port.kind.is_empty()) {
            return port.in_words();
        }
    }
    let key = match &failure.step {
        ReconfigureStep::SetWorkers(_) => "workers".into(),
        ReconfigureStep::SetDatapath(_) => "datapath".into(),
        ReconfigureStep::SetConntrack(_) => "conntrack".into(),
        ReconfigureStep::SetTls(_) => "tls".into(),
        ReconfigureStep::SetHttp(_) => "http".into(),
        ReconfigureStep::StartDpdk(_) => "dpdk".into(),
        ReconfigureStep::AddPort { bridge, port, .. }
        | ReconfigureStep::SetVlans { bridge, port, .. }
        | ReconfigureStep::SetBond { bridge, port, .. }
        | ReconfigureStep::SetInterface { bridge, port, .. }
        | ReconfigureStep::ReopenInterface { bridge, port, .. }
        | ReconfigureStep::RemovePort { bridge, port, .. } => port_key(bridge, port),
        ReconfigureStep::AddFlow { bridge, .. } | ReconfigureStep::RemoveFlow { bridge, .. } => {
            format!("bridge.{bridge}.flows")
        }
        ReconfigureStep::AddController { bridge, .. } | ReconfigureStep::RemoveController { bridge, .. } => {
            format!("bridge.{bridge}.controllers")
        }
        ReconfigureStep::AddBridge { bridge, .. }
        | ReconfigureStep::SetBridge { bridge, .. }
        | ReconfigureStep::RemoveBridge { bridge }
        | ReconfigureStep::AddLocal { bridge, .. }
        | ReconfigureStep::SetLocalFilter { bridge, .. }
        | ReconfigureStep::SetLocalPolicing { bridge, .. }
        | ReconfigureStep::RemoveLocal { bridge } => format!("bridge.{bridge}"),
    };
    origins.error(&key, &failure.error).to_string()
}

impl Unapplied {
    /// What follows from these failures, which `lines` describe.
    pub fn new(failures: &[Failure], lines: &[String]) -> Unapplied {
        let mut unapplied = Unapplied::default();
        for (failure, line) in failures.iter().zip(lines) {
            let failed = failed_ports(failure);
            if failed.is_empty() {
                unapplied.errors.push(line.clone());
            }
            unapplied.ports.extend(failed);
        }
        unapplied
    }
}

/// The interfaces that a failed step leaves without a port, or with one that is not as it is wanted.
fn failed_ports(failure: &Failure) -> Vec<FailedPort> {
    let failed = |bridge: &String, name: &String, kind: &str| {
        let (bridge, name, error) = (bridge.clone(), name.clone(), failure.error.clone());
        FailedPort { bridge, name, kind: kind.to_owned(), error }
    };
    match &failure.step {
        ReconfigureStep::AddPort { bridge, wanted, .. } => {
            wanted.interfaces.iter().map(|(name, interface)| failed(bridge, name, &interface.kind)).collect()
        }
        ReconfigureStep::AddLocal { bridge, settings } => vec![failed(bridge, bridge, settings.local_kind.name())],
        ReconfigureStep::SetLocalFilter { bridge, .. } | ReconfigureStep::SetLocalPolicing { bridge, .. } => {
            vec![failed(bridge, bridge, "")]
        }
        ReconfigureStep::SetVlans { bridge, interfaces, .. } | ReconfigureStep::SetBond { bridge, interfaces, .. } => {
            interfaces.iter().map(|name| failed(bridge, name, "")).collect()
        }
        ReconfigureStep::SetInterface { bridge, interface, .. }
        | ReconfigureStep::ReopenInterface { bridge, interface, .. } => vec![failed(bridge, interface, "")],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Port;
    use crate::config::desired::{Interface, Vlans};

    #[test]
    fn an_interface_that_failed_has_the_reason() {
        let interface = |kind: &str| Interface { kind: kind.into(), ..Interface::default() };
        let single = Port::single("p", interface("tap"), Vlans::default());
        let failed = |wanted: &Port, error: &str| {
            let (bridge, port, wanted) = ("br0".into(), "b".into(), wanted.clone());
            let step = ReconfigureStep::AddPort { bridge, port, wanted, had: Default::default() };
            let failure = Failure { step, error: error.into() };
            let line = describe(&failure, &Origins::named("Open_vSwitch"));
            assert_eq!(line, "could not open network device p (no such device)");
            let file = Origins::new("weir.toml".as_ref(), [("bridge.br0.port.b".into(), 7)].into());
            assert_eq!(describe(&failure, &file), format!("weir.toml:7: bridge.br0.port.b: {error}"));
            let unapplied = Unapplied::new(&[failure], &[line]);
            assert!(unapplied.errors.is_empty());
            unapplied.ports.into_iter().map(|failed| (failed.name, failed.kind)).collect::<Vec<_>>()
        };
        for error in ["no such device", "p: no such device"] {
            assert_eq!(failed(&single, error), [("p".into(), "tap".into())]);
        }
    }
}
