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
    use ReconfigureStep as Step;
    let key = match &failure.step {
        Step::SetWorkers(_) => "workers".into(),
        Step::SetDatapath(_) => "datapath".into(),
        Step::StartDpdk(_) => "dpdk".into(),
        Step::AddPort { bridge, port, .. }
        | Step::SetVlans { bridge, port, .. }
        | Step::SetInterface { bridge, port, .. }
        | Step::RemovePort { bridge, port, .. } => port_key(bridge, port),
        Step::AddFlow { bridge, .. } | Step::RemoveFlow { bridge, .. } => format!("bridge.{bridge}.flows"),
        Step::AddController { bridge, .. } | Step::RemoveController { bridge, .. } => {
            format!("bridge.{bridge}.controllers")
        }
        Step::AddBridge { bridge, .. }
        | Step::SetBridge { bridge, .. }
        | Step::RemoveBridge { bridge }
        | Step::AddLocal { bridge, .. }
        | Step::RemoveLocal { bridge } => format!("bridge.{bridge}"),
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
            // The devices of a bond have not been tried.
            let tried = wanted.only_interface().is_ok();
            let kind = |kind| if tried { kind } else { "" };
            wanted.interfaces.iter().map(|(name, interface)| failed(bridge, name, kind(&interface.kind))).collect()
        }
        ReconfigureStep::AddLocal { bridge, settings } => vec![failed(bridge, bridge, settings.local_kind.name())],
        ReconfigureStep::SetVlans { bridge, interfaces, .. } => {
            interfaces.iter().map(|name| failed(bridge, name, "")).collect()
        }
        ReconfigureStep::SetInterface { bridge, interface, .. } => vec![failed(bridge, interface, "")],
        _ => Vec::new(),
    }
}
