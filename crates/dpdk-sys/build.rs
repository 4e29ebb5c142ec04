//! Looks for libdpdk, and makes the shim: a shared object of the C code in `shim/`, linked with DPDK's libraries.
//!
//! The shim is not linked with what is built here but embedded in it, and loaded when DPDK is first asked for
//! (`src/load.rs`). `OUT_DIR/shim.rs` has it, or the reason why there is none; nothing else depends on what is found.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Releases with the ABI that the bindings are of: the first, and the first that no longer has it.
const VERSIONS: [&str; 2] = ["22.11", "23.11"];

/// What the shim is linked with. Device drivers are loaded at run time, by DPDK itself.
const LIBRARIES: &[&str] =
    &["rte_vhost", "rte_ethdev", "rte_net", "rte_mbuf", "rte_mempool", "rte_ring", "rte_kvargs", "rte_eal"];

const SOURCES: &[&str] = &["shim/shim.c", "shim/layout.c", "shim/mbuf.c", "shim/vhost.c"];

fn main() {
    for file in SOURCES.iter().chain(&["build.rs"]) {
        println!("cargo::rerun-if-changed={file}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let (shim, version) = match find() {
        Ok(version) => (format!("Ok(include_bytes!({:?}))", build(&out)), Some(version)),
        Err(why) => (format!("Err({why:?})"), None),
    };
    let text =
        format!("pub static SHIM: Result<&[u8], &str> = {shim};\npub const VERSION: Option<&str> = {version:?};\n");
    std::fs::write(out.join("shim.rs"), text).expect("OUT_DIR can be written to");
}

/// The version of libdpdk, or why there is none that can be used.
fn find() -> Result<String, String> {
    if env::var_os("CARGO_FEATURE_DPDK").is_none() {
        return Err("the feature \"dpdk\" was off".into());
    }
    watch();
    let version = pkg_config(&["--modversion"]).ok_or("pkg-config did not find libdpdk")?;
    if !is_supported(&version) {
        let [first, end] = VERSIONS;
        let why = format!("libdpdk {version} was found, and Weir's bindings are of {first} to before {end}");
        println!("cargo::warning=built without DPDK: {why}");
        return Err(why);
    }
    Ok(version)
}

/// Has cargo run this again when libdpdk appears, disappears, or becomes another version.
///
/// What tells is a directory that pkg-config searches: a file that a package installs is as old as the package,
/// older than our answer, but its directory changes now. A path that does not exist would have cargo run
/// this, and build all that depends on it, every time; so only those are named that do.
fn watch() {
    for name in ["PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let split = |name| env::var_os(name).map(|paths| env::split_paths(&paths).collect::<Vec<_>>());
    let mut directories = split("PKG_CONFIG_PATH").unwrap_or_default();
    directories.extend(split("PKG_CONFIG_LIBDIR").unwrap_or_else(default_directories));
    let existing: Vec<_> = directories.iter().filter(|path| path.is_dir()).collect();
    // Where there is none, better always than never.
    for path in if existing.is_empty() { directories.iter().collect() } else { existing } {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Where pkg-config looks when it is not told, on Debian and elsewhere; it may not be installed yet. `/usr/local/include`
/// is where a DPDK that was built from source puts headers: its own directory may not exist before.
fn default_directories() -> Vec<PathBuf> {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let mut directories = vec!["/usr/local/include".into()];
    for prefix in ["/usr/local", "/usr"] {
        for directory in [&format!("lib/{arch}-linux-gnu"), "lib64", "lib", "share"] {
            directories.push(Path::new(prefix).join(directory).join("pkgconfig"));
        }
    }
    directories
}

/// Compiles and links the shim. That libdpdk is found but does not fit its own headers ends the build.
fn build(out: &Path) -> PathBuf {
    let flags = |arguments: &[&str]| -> Vec<String> {
        let flags = pkg_config(arguments).unwrap_or_default();
        flags.split_whitespace().map(str::to_owned).collect()
    };
    let mut compiler = cc::Build::new();
    compiler
        .flags(flags(&["--cflags"]))
        .files(SOURCES)
        .pic(true)
        .debug(false)
        // The headers are full of both; they are not ours to mend.
        .flag_if_supported("-Wno-unused-parameter")
        .flag_if_supported("-Wno-deprecated-declarations")
        // Inlined into every burst, whatever the profile.
        .opt_level(3);
    let objects = compiler.compile_intermediates();
    let shim = out.join("weir-dpdk.so");
    let mut link = compiler.get_compiler().to_command();
    link.args(["-shared", "-o"]).arg(&shim).args(objects);
    // All of the libraries are needed, and with them what Rust calls; all that is missing shows when the shim is loaded.
    link.args(["-Wl,--no-undefined", "-Wl,--no-as-needed", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--strip-all"]);
    link.args(flags(&["--libs-only-L"])).args(LIBRARIES.iter().map(|library| format!("-l{library}")));
    let status = link.status().unwrap_or_else(|e| panic!("{link:?}: {e}"));
    assert!(status.success(), "{link:?}: {status}");
    shim
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
