//! What a configuration needs of the machine: cores, interfaces, permissions, kernel features.

use std::collections::BTreeSet;
use std::path::Path;

use datapath::Topology;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::desired::{Desired, Interface};
use super::error::{ConfigError, ConfigErrors};
use super::origins::{Loaded, Origins, port_key};

/// `AF_XDP` (linux/socket.h).
const AF_XDP: u16 = 44;

/// Bits of `CapEff` (linux/capability.h).
const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_NET_RAW: u64 = 1 << 13;

/// Everything that the configuration needs and the machine does not have.
pub fn environment(loaded: &Loaded) -> ConfigErrors {
    let mut errors = cores(&loaded.desired, &loaded.origins);
    for (bridge_name, bridge) in &loaded.desired.bridges {
        if bridge.settings.local
            && let Some(problem) = tap_problem()
        {
            errors.push(loaded.origins.error(&format!("bridge.{bridge_name}"), format!("LOCAL port: {problem}")));
        }
        for (port_name, port) in &bridge.ports {
            let problems = port.interfaces.iter().filter_map(|(name, interface)| interface_problem(name, interface));
            errors.extend(problems.map(|problem| loaded.origins.error(&port_key(bridge_name, port_name), problem)));
            for filter in port.interfaces.values().filter_map(|interface| interface.ingress_filter.as_deref()) {
                let key = format!("{}.ingress-filter", port_key(bridge_name, port_name));
                let problem = ingress::RuleSet::compile(filter).map_err(|problem| problem.to_string());
                errors.extend(problem.err().map(|problem| loaded.origins.error(&key, problem)));
            }
            for program in port.interfaces.values().filter_map(|interface| interface.ingress_program.as_ref()) {
                let key = format!("{}.ingress-ebpf", port_key(bridge_name, port_name));
                let problem = ingress::ebpf::PortProgram::open(&program.path, program.name.as_deref());
                errors.extend(problem.err().map(|problem| loaded.origins.error(&key, problem)));
            }
        }
    }
    ConfigErrors(errors)
}

/// The cores that workers are to run on and cannot.
pub fn cores(desired: &Desired, origins: &Origins) -> Vec<ConfigError> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let usable: Vec<_> =
        (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).map(|core| core.to_string()).collect();
    let missing = desired
        .workers
        .cores
        .iter()
        .filter(|&&core| core as usize >= CpuSet::MAX_CPU || !allowed.is_set(core as usize));
    let error = |core| {
        let problem =
            format!("core {core} does not exist, or this process may not use it; cores: {}", usable.join(", "));
        origins.error("workers.cores", problem)
    };
    missing.map(error).collect()
}

/// Those of these cores that do not exist, or that this process may not use.
pub fn missing_cores(cores: &BTreeSet<u32>, topology: &Topology) -> BTreeSet<u32> {
    let there_are = topology.cores();
    // What is not known may be there.
    if there_are.is_empty() {
        return BTreeSet::new();
    }
    cores.iter().copied().filter(|&core| !there_are.contains(&(core as usize))).collect()
}

fn interface_problem(name: &str, interface: &Interface) -> Option<String> {
    match interface.kind.as_str() {
        "tap" | "internal" => tap_problem().map(str::to_owned),
        kind @ ("system" | "afpacket" | "afxdp") => device_problem(name, kind),
        _ => None,
    }
}

fn device_problem(name: &str, kind: &str) -> Option<String> {
    if !Path::new("/sys/class/net").join(name).exists() {
        return Some(format!("no such interface; create it first, or set type = \"tap\" to have Weir create {name}"));
    }
    if !has_capabilities(CAP_NET_ADMIN | CAP_NET_RAW) {
        return Some("no permission to open the interface; run as root, or with CAP_NET_ADMIN and CAP_NET_RAW".into());
    }
    let family = AddressFamily::from_raw(AF_XDP);
    if kind == "afxdp" && matches!(socket(family, SocketType::RAW, None), Err(Errno::AFNOSUPPORT)) {
        return Some("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); set type = \"afpacket\"".into());
    }
    None
}

fn tap_problem() -> Option<&'static str> {
    if !Path::new("/dev/net/tun").exists() {
        return Some("no /dev/net/tun; load the kernel module tun, or set local = false for the LOCAL port");
    }
    (!has_capabilities(CAP_NET_ADMIN))
        .then_some("no permission to make a TAP device; run as root, or with CAP_NET_ADMIN")
}

/// Whether this process has all of these capabilities, as far as it can tell.
fn has_capabilities(wanted: u64) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_none_or(|have| have & wanted == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let loaded = crate::source::toml::parse(Path::new("t.toml"), text).unwrap();
        environment(&loaded).0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_the_machine_lacks_is_named_with_its_line() {
        let got = problems("[workers]\ncores = [4095]");
        assert!(got[0].starts_with("t.toml:2: workers.cores: core 4095 does not exist"), "{got:?}");
        let got = problems("[[bridge]]\nname = 'b'\nlocal = false\n[[bridge.port]]\nname = 'nosuch0'");
        assert!(got[0].starts_with("t.toml:5: bridge.b.port.nosuch0: no such interface"), "{got:?}");
    }

    #[test]
    fn ports_without_devices_need_nothing() {
        assert!(
            problems("[[bridge]]\nname = 'b'\nlocal = false\n[[bridge.port]]\nname = 'd'\ntype = 'dummy'").is_empty()
        );
    }
}
