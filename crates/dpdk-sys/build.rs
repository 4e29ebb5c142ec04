//! Looks for libdpdk, compiles the shim, and tells what was found.
//!
//! Found: `cfg(dpdk)` here, and `DEP_DPDK_FOUND=1` for the build scripts of crates that use this one.
//! Not found, or of a version whose structures differ: the crate is empty, and so are these.

use std::process::Command;

/// Releases with the ABI that the bindings are of: the first, and the first that no longer has it.
const VERSIONS: [&str; 2] = ["22.11", "23.11"];

/// What is linked with. Device drivers are loaded at run time, by DPDK itself.
const LIBRARIES: &[&str] =
    &["rte_vhost", "rte_ethdev", "rte_net", "rte_mbuf", "rte_mempool", "rte_ring", "rte_kvargs", "rte_eal"];

fn main() {
    for name in ["PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    for file in ["build.rs", "shim/shim.c", "shim/layout.c", "shim/mbuf.c", "shim/vhost.c"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rustc-check-cfg=cfg(dpdk)");
    // Where pkg-config gets installed later, or the library, the next build is to see it.
    println!("cargo::rerun-if-changed=/usr/include/dpdk/rte_eal.h");
    let Some(version) = pkg_config(&["--modversion"]) else { return };
    if !is_supported(&version) {
        println!(
            "cargo::warning=libdpdk {version} is not used: Weir's bindings are of {} to before {}",
            VERSIONS[0], VERSIONS[1]
        );
        return;
    }
    let Some(flags) = pkg_config(&["--cflags"]) else { return };
    let mut shim = cc::Build::new();
    for flag in flags.split_whitespace() {
        shim.flag(flag);
    }
    shim.files(["shim/shim.c", "shim/layout.c", "shim/mbuf.c", "shim/vhost.c"])
        // The headers are full of both; they are not ours to mend.
        .flag_if_supported("-Wno-unused-parameter")
        .flag_if_supported("-Wno-deprecated-declarations")
        // Inlined into every burst, whatever the profile.
        .opt_level(3)
        .compile("weir_dpdk_shim");
    if let Some(paths) = pkg_config(&["--libs-only-L"]) {
        for path in paths.split_whitespace().filter_map(|flag| flag.strip_prefix("-L")) {
            println!("cargo::rustc-link-search=native={path}");
        }
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    println!("cargo::rustc-cfg=dpdk");
    println!("cargo::metadata=FOUND=1");
}

/// What pkg-config says of libdpdk; `None` where it is missing, or libdpdk.
fn pkg_config(arguments: &[&str]) -> Option<String> {
    let output = Command::new("pkg-config").args(arguments).arg("libdpdk").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn is_supported(version: &str) -> bool {
    let numbers = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    };
    let [first, end] = VERSIONS.map(numbers);
    numbers(version).is_some_and(|version| Some(version) >= first && Some(version) < end)
}
