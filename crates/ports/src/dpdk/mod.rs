//! DPDK: frames of NICs that a driver in this process polls, and of DPDK's software devices.
//!
//! [`settings`] says how DPDK is to be started, [`arguments`] makes EAL's command line of it, [`eal`]
//! starts it, once. [`mempool`] is where frames lie and [`mbuf`] turns them into packets and back;
//! [`thread`] makes DPDK know the threads that do so. Where libdpdk was not found when Weir was
//! compiled, `absent` stands for all of them.
//!
//! Nothing of DPDK runs, and no memory is taken, before [`initialise`] is called.

pub mod arguments;
pub mod settings;

#[cfg(dpdk)]
pub mod eal;
#[cfg(dpdk)]
pub(crate) mod log;
#[cfg(dpdk)]
pub mod mbuf;
#[cfg(dpdk)]
pub mod mempool;
#[cfg(dpdk)]
pub mod thread;

#[cfg(not(dpdk))]
#[path = "absent.rs"]
pub mod eal;

pub use eal::{initialise, state, version};
pub use settings::{Init, Settings};

/// How DPDK is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// This program was compiled without it.
    Absent,
    /// Nobody has asked for it.
    Off,
    /// It was asked for and could not be started, for this reason.
    Failed(String),
    /// It runs.
    Ready,
}

impl State {
    /// Whether ports of DPDK can be opened.
    pub fn is_ready(&self) -> bool {
        *self == State::Ready
    }

    /// Why no port of DPDK can be opened, and what would help; `None` where they can.
    pub fn problem(&self) -> Option<String> {
        match self {
            State::Absent => {
                Some("this program was compiled without DPDK; install libdpdk-dev and compile again".into())
            }
            State::Off => {
                Some("DPDK is not initialised; set other_config:dpdk-init=true (in TOML: [dpdk] init = true)".into())
            }
            State::Failed(why) => Some(format!("DPDK could not be initialised: {why}")),
            State::Ready => None,
        }
    }
}
