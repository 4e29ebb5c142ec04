//! Passes on whether libdpdk was found, as `cfg(dpdk)`.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(dpdk)");
    println!("cargo::rerun-if-env-changed=DEP_DPDK_FOUND");
    if std::env::var_os("DEP_DPDK_FOUND").is_some() {
        println!("cargo::rustc-cfg=dpdk");
    }
}
