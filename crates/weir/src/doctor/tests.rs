use std::os::unix::fs::symlink;

use super::*;

/// A machine made of files.
struct Made {
    dir: tempfile::TempDir,
}

impl Made {
    /// One that lacks nothing.
    fn good() -> Made {
        let made = Made { dir: tempfile::tempdir().unwrap() };
        made.set("proc/sys/kernel/osrelease", "6.1.0-13-amd64\n");
        made.set("proc/self/status", "Name:\tweir\nCapEff:\t000001ffffffffff\n");
        made.set("proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax open files  1048576  1048576  files\nMax locked memory  unlimited  unlimited  bytes\n");
        made.set("proc/net/protocols", "protocol  size\nXDP       1088      0\n");
        made.set(
            "proc/cpuinfo",
            "vendor_id\t: GenuineIntel\nflags\t\t: bmi1 bmi2 abm popcnt avx2 constant_tsc nonstop_tsc\n",
        );
        made.set("dev/net/tun", "");
        made.set("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024\n");
        made.set("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "1000\n");
        made.set("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        made.set("sys/devices/system/cpu/online", "0-7\n");
        made.set("sys/devices/system/cpu/isolated", "2-3,6\n");
        made
    }

    fn set(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.dir.path().join(path);
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
    }

    fn nic(&self, address: &str, driver: &str) {
        let device = format!("sys/bus/pci/devices/{address}");
        self.set(&format!("{device}/class"), "0x020000\n");
        symlink(format!("../drivers/{driver}"), self.dir.path().join(device).join("driver")).unwrap();
    }

    fn findings(&self) -> Vec<Finding> {
        examine(&Machine::at(self.dir.path()))
    }

    /// What is to be done, with the areas.
    fn todo(&self) -> Vec<(Severity, &'static str)> {
        self.findings().iter().filter(|f| f.level != Severity::Ok).map(|f| (f.level, f.area)).collect()
    }

    fn of(&self, area: &str) -> Finding {
        self.findings().into_iter().find(|f| f.area == area).unwrap()
    }
}

#[test]
fn a_machine_that_lacks_nothing_is_ready() {
    let made = Made::good();
    assert_eq!(made.todo(), []);
    assert!(text(&made.findings()).ends_with("This machine is ready.\n"));
    assert!(
        made.of("isolated cores")
            .found
            .contains("2-3,6; for workers: ovs-vsctl set Open_vSwitch . other_config:pmd-cpu-mask=0x4c")
    );
}

#[test]
fn each_lack_is_named_with_a_command() {
    type Break = fn(&Made);
    let cases: &[(Severity, &str, Break)] = &[
        (Severity::Advice, "kernel", |m| m.set("proc/sys/kernel/osrelease", "5.4.0-1\n")),
        (Severity::Problem, "capabilities", |m| m.set("proc/self/status", "CapEff:\t0000000000001000\n")),
        (Severity::Advice, "AF_XDP", |m| m.set("proc/net/protocols", "protocol\nTCP 1\n")),
        (Severity::Problem, "TAP devices", |m| m.remove("dev/net/tun")),
        (Severity::Advice, "open files", |m| m.set("proc/self/limits", "Max open files  1024  1024  files\n")),
        (Severity::Advice, "hugepages", |m| m.set("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0")),
        (Severity::Advice, "hugepages", |m| m.remove("sys/kernel/mm/hugepages")),
        (Severity::Advice, "transparent hugepages", |m| {
            m.set("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
        }),
        (Severity::Advice, "processor", |m| m.set("proc/cpuinfo", "flags : constant_tsc nonstop_tsc")),
        (Severity::Advice, "cycle counter", |m| {
            m.set("proc/cpuinfo", "flags : bmi1 bmi2 abm popcnt avx2 constant_tsc")
        }),
        (Severity::Advice, "isolated cores", |m| m.set("sys/devices/system/cpu/isolated", "\n")),
        (Severity::Advice, "clock rate", |m| {
            m.set("sys/devices/system/cpu/cpu5/cpufreq/scaling_governor", "powersave")
        }),
        (Severity::Advice, "NUMA balancing", |m| m.set("proc/sys/kernel/numa_balancing", "1")),
    ];
    for (level, area, lacks) in cases {
        let made = Made::good();
        lacks(&made);
        assert_eq!(made.todo(), [(*level, *area)]);
        let finding = made.of(area);
        assert!(!finding.commands.is_empty(), "{finding:?}");
        let text = text(&made.findings());
        assert!(finding.commands.iter().all(|command| text.contains(command)), "{text}");
    }
}

#[test]
fn problems_come_before_advice_and_advice_before_the_rest() {
    let made = Made::good();
    made.set("proc/sys/kernel/osrelease", "5.4.0-1\n");
    made.remove("dev/net/tun");
    let levels: Vec<Severity> = made.findings().iter().map(|f| f.level).collect();
    assert_eq!(levels[..2], [Severity::Problem, Severity::Advice]);
    assert!(levels.is_sorted());
    assert!(text(&made.findings()).ends_with("1 to mend, 1 to consider; from top to bottom.\n"));
}

#[test]
fn memory_that_can_be_locked_matters_to_old_kernels() {
    let made = Made::good();
    made.set("proc/self/limits", "Max locked memory  65536  65536  bytes\n");
    assert_eq!(made.of("locked memory").level, Severity::Ok);
    made.set("proc/sys/kernel/osrelease", "5.10.0-1\n");
    assert_eq!(made.of("locked memory").level, Severity::Problem);
}

#[test]
fn cards_are_named_with_the_way_to_use_them() {
    let made = Made::good();
    made.nic("0000:3b:00.0", "ice");
    made.set("sys/bus/pci/devices/0000:3b:00.0/net/ens1f0/mtu", "1500");
    made.nic("0000:3b:00.1", "vfio-pci");
    made.set("sys/bus/pci/devices/0000:00:01.0/class", "0x030000");
    assert_eq!(made.todo(), [(Severity::Advice, "IOMMU"), (Severity::Advice, "vfio-pci")]);
    assert!(made.of("IOMMU").commands[0].contains("intel_iommu=on"));
    let text = text(&made.findings());
    assert!(text.contains("0000:3b:00.0 with ice is ens1f0: type=afxdp"), "{text}");
    assert!(text.contains("options:dpdk-devargs=0000:3b:00.1"), "{text}");
    assert!(!text.contains("0000:00:01.0"), "{text}");
    made.set("sys/kernel/iommu_groups/0/type", "DMA");
    made.set("sys/bus/pci/drivers/vfio-pci/new_id", "");
    assert_eq!(made.todo(), []);
}

#[test]
fn nodes_without_hugepages_are_named() {
    let made = Made::good();
    for (node, free) in [(0, "8"), (1, "0")] {
        made.set(&format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/free_hugepages"), free);
    }
    let findings = made.findings();
    let advice: Vec<_> = findings.iter().filter(|f| f.level == Severity::Advice).collect();
    assert!(advice.len() == 1 && advice[0].found.starts_with("node1 has none free"), "{advice:?}");
}

#[test]
fn a_machine_without_any_of_these_files_is_examined_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let findings = examine(&Machine::at(dir.path()));
    assert!(findings.iter().any(|f| f.area == "hugepages"));
    for (path, text) in [
        ("proc/self/status", "CapEff:\tzz"),
        ("proc/sys/kernel/osrelease", "x"),
        ("sys/devices/system/cpu/online", "7-,-"),
    ] {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    examine(&Machine::at(dir.path()));
}
