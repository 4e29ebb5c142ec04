//! DPDK: frames of NICs that a driver in this process polls, and of DPDK's software devices.
//!
//! [`settings`] says how DPDK is to be started, [`arguments`] makes EAL's command line of it, [`eal`]
//! starts it, once. [`mempool`] is where frames lie and [`mbuf`] turns them into packets and back;
//! [`thread`] makes DPDK know the threads that do so. `probe` finds devices, `device` starts
//! and closes them, `queue` is what workers call, and `port` answers questions about a port.
//!
//! Nothing of DPDK is loaded or runs, and no memory is taken, before [`initialise`] is called. Where its libraries are
//! missing, or were when Weir was compiled, that fails, and all else works.

use crate::kind::Kind;
use crate::options::{Form, OptionDef};

pub mod arguments;
mod device;
pub mod eal;
pub(crate) mod log;
pub mod mbuf;
pub mod mempool;
mod port;
mod probe;
mod queue;
pub mod reports;
pub mod settings;
pub mod thread;

use port::open;

pub use eal::{initialise, state, version};
pub use settings::{Init, Settings};

/// Declaration of this kind.
pub const KIND: Kind = Kind {
    names: &["dpdk"],
    doc: "Device of DPDK: a NIC that this process has for itself, or a software device.",
    options: OPTIONS,
    open: |spec, options, env| open(spec, options, env),
};

const OPTIONS: &[OptionDef] = &[
    OptionDef {
        name: "dpdk-devargs",
        form: Form::Text,
        doc: "The device: a PCI address, class=eth,mac=ADDRESS, or a software device with its parameters.",
    },
    OptionDef { name: "n_rxq", form: Form::Number(1, 1024), doc: "Receive queues, 1 by default." },
    OptionDef {
        name: "n_rxq_desc",
        form: Form::Number(1, 4096),
        doc: "Descriptors of each receive queue, 2048 by default.",
    },
    OptionDef {
        name: "n_txq_desc",
        form: Form::Number(1, 4096),
        doc: "Descriptors of each transmit queue, 2048 by default.",
    },
    OptionDef { name: "rx-flow-ctrl", form: Form::Bool, doc: "Obey pause frames, false by default." },
    OptionDef { name: "tx-flow-ctrl", form: Form::Bool, doc: "Send pause frames, false by default." },
    OptionDef { name: "flow-ctrl-autoneg", form: Form::Bool, doc: "Negotiate pause frames, false by default." },
    OptionDef {
        name: "dpdk-lsc-interrupt",
        form: Form::Bool,
        doc: "Have the device interrupt when its link changes, false by default.",
    },
];

/// How DPDK is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EalState {
    /// Nobody has asked for it.
    Off,
    /// It was asked for and is not here, for this reason: its libraries are missing, or were when this was compiled.
    Absent(String),
    /// It was asked for and could not be started, for this reason.
    Failed(String),
    /// It runs.
    Ready,
}

impl EalState {
    /// Whether ports of DPDK can be opened.
    pub fn is_ready(&self) -> bool {
        *self == EalState::Ready
    }

    /// Why no port of DPDK can be opened, and what would help; `None` where they can.
    pub fn problem(&self) -> Option<String> {
        match self {
            EalState::Off => {
                Some("DPDK is not initialised; set other_config:dpdk-init=true (in TOML: [dpdk] init = true)".into())
            }
            EalState::Absent(why) | EalState::Failed(why) => Some(format!("DPDK could not be initialised: {why}")),
            EalState::Ready => None,
        }
    }
}
