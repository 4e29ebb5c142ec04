//! What can go wrong when the datapath is configured.

use crate::action::PortNo;
use crate::upcall::FlowId;

/// Why a request to the datapath was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such port.
    #[error("datapath port {} does not exist", .0.0)]
    NoSuchPort(PortNo),
    /// The name is taken.
    #[error("port {0} is in the datapath already")]
    PortExists(String),
    /// The number is taken.
    #[error("there is a datapath port {} already", .0.0)]
    NumberTaken(PortNo),
    /// All port numbers are in use.
    #[error("the datapath has no port number left; it can hold {0} ports")]
    TooManyPorts(usize),
    /// The port refused.
    #[error(transparent)]
    Port(#[from] ports::Error),
    /// No such flow: it has been removed.
    #[error("datapath flow {:#x} does not exist", .0.0)]
    NoSuchFlow(FlowId),
    /// What the flow was made from has changed since.
    #[error("the flow is out of date before it is installed")]
    OutOfDate,
    /// The flow limit is reached.
    #[error("the flow limit of {0} is reached")]
    TooManyFlows(usize),
    /// The input port has too many different masks.
    #[error("the limit of {limit} masks for packets from port {} is reached", .port.0)]
    TooManyMasks {
        /// Input port.
        port: PortNo,
        /// The limit.
        limit: usize,
    },
    /// There are as many workers as there can be.
    #[error("the datapath can have {0} workers at a time, those included that are about to end")]
    TooManyWorkers(usize),
    /// There are as many taps as there can be.
    #[error("there are {0} taps already, which is as many as there can be; end one of them")]
    TooManyTaps(usize),
    /// A thread could not be started.
    #[error("cannot start {what}: {source}")]
    Thread {
        /// Which thread, on which core.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
}
