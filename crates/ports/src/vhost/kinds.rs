//! The two kinds of vhost-user ports.

use std::sync::Arc;

use crate::kind::{Env, Kind};
use crate::options::{Form, OptionDef, Options};
use crate::spec::PortSpec;
use crate::{Error, Port};

use super::port;

const RETRIES: OptionDef = OptionDef {
    name: "tx-retries-max",
    form: Form::Number(0, 32),
    doc: "How often a burst is tried again that the guest's ring took only a part of, 8 by default.",
};

const QUEUES: OptionDef =
    OptionDef { name: "n_rxq", form: Form::Number(1, 128), doc: "Without effect: the guest decides on its queues." };

/// The guest's side makes the socket, and Weir connects to it, again and again.
pub const CLIENT: Kind = Kind {
    names: &["dpdkvhostuserclient"],
    doc: "A virtual machine's network card over vhost-user; the machine makes the socket.",
    options: &[
        OptionDef {
            name: "vhost-server-path",
            form: Form::Path,
            doc: "The socket of the machine's side, which may come later.",
        },
        RETRIES,
        QUEUES,
    ],
    open: |spec, options, env| open(spec, options, env, true),
};

/// Weir makes the socket, and the guest's side connects.
pub const SERVER: Kind = Kind {
    names: &["dpdkvhostuser"],
    doc: "A virtual machine's network card over vhost-user; Weir makes the socket, named as the port.",
    options: &[RETRIES, QUEUES],
    open: |spec, options, env| open(spec, options, env, false),
};

fn open(spec: &PortSpec, options: &Options, env: &Env, client: bool) -> Result<Arc<dyn Port>, Error> {
    if let Some(problem) = crate::dpdk::state().problem() {
        return Err(Error::Unavailable { port: spec.name.clone(), problem });
    }
    port::open(spec, options, env, client)
}
