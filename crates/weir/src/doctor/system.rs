//! The kernel, permissions and limits.

use super::{Finding, Machine};

/// The first kernel with `XDP_SHARED_UMEM` between queues and devices, which ports of type afxdp use.
const OLDEST_KERNEL: (u32, u32) = (5, 9);

/// The first kernel that accounts XDP's memory to the control group instead of the limit.
const KERNEL_WITHOUT_MEMLOCK: (u32, u32) = (5, 11);

/// `include/uapi/linux/capability.h`.
const CAPABILITIES: &[(u32, &str, &str)] = &[
    (12, "CAP_NET_ADMIN", "make TAP devices, set interfaces up"),
    (13, "CAP_NET_RAW", "open interfaces"),
    (14, "CAP_IPC_LOCK", "lock memory, use hugepages"),
    (23, "CAP_SYS_NICE", "set priorities"),
    (39, "CAP_BPF", "load the XDP program of afxdp ports"),
];

/// Bytes that must be lockable: the default pool of frames, with room to spare.
const LOCKED: u64 = 256 << 20;

/// Descriptors for a hundred ports with a queue for each of some workers, and their controllers.
const OPEN_FILES: u64 = 8192;

fn kernel_version(machine: &Machine) -> Option<(u32, u32)> {
    let release = machine.read("/proc/sys/kernel/osrelease")?;
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Is the kernel recent enough for AF_XDP as Weir uses it?
pub fn kernel(machine: &Machine) -> Vec<Finding> {
    let Some(version) = kernel_version(machine) else { return vec![] };
    let (major, minor) = version;
    vec![if version >= OLDEST_KERNEL {
        Finding::ok("kernel", format!("Linux {major}.{minor}"))
    } else {
        let (needs, sub) = OLDEST_KERNEL;
        Finding::advice(
            "kernel",
            format!(
                "Linux {major}.{minor} is older than {needs}.{sub}: ports of type afxdp share no memory, use type=afpacket"
            ),
            &["apt install linux-image-amd64 && reboot"],
        )
    }]
}

/// May this process do what the daemon has to?
pub fn capabilities(machine: &Machine) -> Vec<Finding> {
    let held = machine.field("/proc/self/status", "CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    let Some(held) = held else { return vec![] };
    let lacks: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| held >> bit & 1 == 0).collect();
    if lacks.is_empty() {
        return vec![Finding::ok("capabilities", "all that a switch needs")];
    }
    let words: Vec<_> = lacks.iter().map(|(_, name, what)| format!("{name} ({what})")).collect();
    let found = format!("this user lacks {}", words.join(", "));
    let names: Vec<_> = lacks.iter().map(|(_, name, _)| name.to_lowercase()).collect();
    let grant = format!("setcap {}+ep \"$(command -v weir)\"   # or run weir as root", names.join(","));
    vec![Finding::problem("capabilities", found, &[&grant])]
}

/// Does another switch daemon use the run directory already?
pub fn other_daemon(machine: &Machine) -> Vec<Finding> {
    let Some(pid) = machine.number("/run/openvswitch/ovs-vswitchd.pid") else { return vec![] };
    let Some(name) = machine.read(&format!("/proc/{pid}/comm")) else { return vec![] };
    vec![Finding::ok(
        "switch daemon",
        format!("{name} runs with pid {pid}; one daemon can have the database at a time"),
    )]
}

/// Has the kernel AF_XDP?
pub fn xdp(machine: &Machine) -> Vec<Finding> {
    let Some(protocols) = machine.read("/proc/net/protocols") else { return vec![] };
    vec![if protocols.lines().any(|line| line.starts_with("XDP ")) {
        Finding::ok("AF_XDP", "there")
    } else {
        Finding::advice(
            "AF_XDP",
            "this kernel has none (CONFIG_XDP_SOCKETS): interfaces of type afxdp cannot be opened, use type=afpacket",
            &["apt install linux-image-amd64 && reboot"],
        )
    }]
}

/// Can TAP devices be made?
pub fn tun(machine: &Machine) -> Vec<Finding> {
    vec![if machine.has("/dev/net/tun") {
        Finding::ok("TAP devices", "/dev/net/tun is there")
    } else {
        Finding::problem(
            "TAP devices",
            "no /dev/net/tun: bridges have no LOCAL port, and ports of type tap or internal cannot be made",
            &["modprobe tun", "echo tun > /etc/modules-load.d/tun.conf"],
        )
    }]
}

/// Can the pool of AF_XDP be locked?
pub fn locked_memory(machine: &Machine) -> Vec<Finding> {
    let needed = kernel_version(machine).is_some_and(|version| version < KERNEL_WITHOUT_MEMLOCK);
    let Some(limit) = machine.soft_limit("Max locked memory").filter(|&limit| limit < LOCKED) else {
        return vec![Finding::ok("locked memory", "the limit is high enough")];
    };
    let found = format!("at most {} KiB can be locked", limit >> 10);
    vec![if needed {
        Finding::problem(
            "locked memory",
            format!("{found}: too little for ports of type afxdp on this kernel"),
            &["ulimit -l unlimited   # in a systemd unit: LimitMEMLOCK=infinity"],
        )
    } else {
        Finding::ok(
            "locked memory",
            format!("{found}; this kernel does not count AF_XDP's, and --mlockall is done by root"),
        )
    }]
}

/// Are there descriptors for many ports?
pub fn open_files(machine: &Machine) -> Vec<Finding> {
    // The daemon raises the soft limit by itself.
    let Some(limit) = machine.hard_limit("Max open files") else { return vec![] };
    vec![if limit >= OPEN_FILES {
        Finding::ok("open files", format!("up to {limit}"))
    } else {
        Finding::advice(
            "open files",
            format!("at most {limit} at a time: too few for hundreds of ports and controllers"),
            &["ulimit -Hn 1048576   # in a systemd unit: LimitNOFILE=1048576"],
        )
    }]
}
