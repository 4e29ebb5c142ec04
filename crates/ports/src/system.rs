//! Type `system`: an interface of the kernel, by the backend that suits it.
//!
//! | interface | backend | why |
//! |---|---|---|
//! | veth, tap, bridge, any virtual one | afpacket | The stack at the other end leaves checksums unfinished and frames uncut. AF_XDP can't carry that: the kernel cuts frames for it, Weir joins them again, and TCP has half of AF_PACKET's rate (docs/decisions/0011). |
//! | hardware | afxdp, if it opens | No copy, no allocation in the kernel, and the wire has no unfinished frames. |
//! | hardware, afxdp fails | afpacket | It works everywhere. |
//!
//! `options:backend` overrides this.

use std::sync::Arc;

use crate::kind::{Env, Kind};
use crate::link::Interface;
use crate::options::Options;
use crate::spec::PortSpec;
use crate::{Error, Port, afpacket, afxdp};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["system"],
    doc: "An interface of the kernel, by afpacket or afxdp as suits it.",
    options: afpacket::OPTIONS,
    open,
};

fn open(spec: &PortSpec, options: &Options, env: &Env) -> Result<Arc<dyn Port>, Error> {
    let packet = || (afpacket::KIND.open)(spec, options, env);
    match options.text("backend") {
        Some("afpacket") => packet(),
        Some("afxdp") => express(spec, env),
        _ if !pays(&spec.name)? => packet(),
        _ => express(spec, env).or_else(|error| {
            tracing::info!("{}: falls back to afpacket: {error}", spec.name);
            packet()
        }),
    }
}

/// Whether AF_XDP is worth trying.
fn pays(name: &str) -> Result<bool, Error> {
    Ok(!Interface::open(name)?.leads_to_stack())
}

/// Opens the interface as type afxdp, with those of its options that this type knows.
fn express(spec: &PortSpec, env: &Env) -> Result<Arc<dyn Port>, Error> {
    let mut spec = PortSpec { kind: "afxdp".into(), ..spec.clone() };
    spec.options.retain(|name, _| afxdp::KIND.options.iter().any(|option| option.name == name));
    (afxdp::KIND.open)(&spec, &Options::check(&spec, afxdp::KIND.options)?, env)
}
