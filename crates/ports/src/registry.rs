//! The kinds of ports there are, and how one is opened by its declaration.

use std::sync::Arc;

pub use crate::kind::{Env, Kind, Open};
use crate::options::Options;
pub use crate::spec::PortSpec;
use crate::{Error, Port};

/// Every kind of port.
pub const KINDS: &[&Kind] = &[
    &crate::system::KIND,
    &crate::afpacket::KIND,
    &crate::afxdp::KIND,
    &crate::dpdk::KIND,
    &crate::tap::KIND,
    &crate::vhost::CLIENT,
    &crate::vhost::SERVER,
    &crate::pcap::KIND,
    &crate::null::KIND,
    &crate::dummy::KIND,
];

/// Kinds that have no device of their own, so that nobody opens one by itself.
const ACCEPTED: &[&Kind] = &[&crate::tunnel::KIND];

/// The kind of port called `name`.
pub fn kind(name: &str) -> Option<&'static Kind> {
    let name = if name.is_empty() { "system" } else { name };
    KINDS.iter().chain(ACCEPTED).find(|k| k.names.contains(&name)).copied()
}

/// Checks a declaration without opening anything.
pub fn check(spec: &PortSpec) -> Result<(), Error> {
    checked(spec).map(|_| ())
}

/// Opens a port.
///
/// # Errors
/// An unknown kind, an option that the kind does not have or whose value is wrong, and whatever the
/// backend meets.
pub fn open(spec: &PortSpec, env: &Env) -> Result<Arc<dyn Port>, Error> {
    let (kind, options) = checked(spec)?;
    (kind.open)(spec, &options, env)
}

/// Has an open port take the options of a declaration, if it can without being opened again: returns whether it has.
///
/// # Errors
/// An option that its kind does not have or whose value is wrong, and whatever the backend meets.
pub fn set_options(port: &dyn Port, spec: &PortSpec) -> Result<bool, Error> {
    let (_, options) = checked(spec)?;
    port.set_options(&options)
}

fn checked(spec: &PortSpec) -> Result<(&'static Kind, Options<'_>), Error> {
    let kind = kind(&spec.kind).ok_or_else(|| Error::UnknownKind {
        port: spec.name.clone(),
        kind: spec.kind.clone(),
        known: KINDS.iter().map(|k| k.names[0]).collect::<Vec<_>>().join(", "),
    })?;
    Ok((kind, Options::check(spec, kind.options)?))
}

/// Help on every kind of port and its options, as text.
pub fn help() -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for kind in KINDS {
        let _ = writeln!(out, "{}: {}", kind.names.join(" or "), kind.doc);
        for o in kind.options {
            let _ = writeln!(out, "    {:<16} {} ({})", o.name, o.doc, o.form.describe());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_kind_lists_the_known_ones() {
        let error = open(&PortSpec::new("p0", "vhost"), &Env::default()).unwrap_err().to_string();
        assert!(error.starts_with("p0: unknown type \"vhost\"; known types: "), "{error}");
        assert!(KINDS.iter().all(|k| error.contains(k.names[0])), "{error}");
    }

    #[test]
    fn names_are_unique_and_documented() {
        let mut names: Vec<_> = KINDS.iter().flat_map(|k| k.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for kind in KINDS {
            assert!(kind.doc.ends_with('.'), "{}", kind.names[0]);
            for option in kind.options {
                assert!(option.doc.ends_with('.'), "{} {}", kind.names[0], option.name);
                assert!(help().contains(option.name));
            }
        }
    }
}
