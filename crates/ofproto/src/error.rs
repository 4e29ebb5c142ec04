//! What can go wrong when bridges and ports are configured. A request of OpenFlow that is refused is answered
//! with [`openflow::OfError`].

use openflow::OfPort;

/// Why a change to the configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is taken.
    #[error("bridge {0} exists already")]
    BridgeExists(String),
    /// No such bridge.
    #[error("bridge {0} does not exist")]
    NoSuchBridge(String),
    /// The name is taken.
    #[error("port {port} is in bridge {bridge} already")]
    PortExists {
        /// Port.
        port: String,
        /// Bridge that has it.
        bridge: String,
    },
    /// No such port.
    #[error("bridge {bridge} has no port {port}")]
    NoSuchPort {
        /// Bridge.
        bridge: String,
        /// Port number or name.
        port: String,
    },
    /// The requested OpenFlow port number cannot be given.
    #[error("{port}: OpenFlow port {requested} is not a number from 1 to 65279")]
    BadPortNumber {
        /// Port.
        port: String,
        /// Number that was asked for.
        requested: OfPort,
    },
    /// All OpenFlow port numbers are in use.
    #[error("bridge {0} has no OpenFlow port number left")]
    NoPortNumber(String),
    /// The datapath has not been attached yet.
    #[error("the switch has no datapath yet")]
    NoDatapath,
    /// A port of bareudp does not say what it carries.
    #[error("a bareudp port needs the option payload_type")]
    NoPayload,
    /// Another port of the same UDP port carries something else.
    #[error("{port}: another port carries something else through {carrier}")]
    OtherPayload {
        /// Port.
        port: String,
        /// What both would share.
        carrier: String,
    },
    /// Another tunnel port takes the same packets.
    #[error(transparent)]
    SameTunnel(#[from] tunnel::matching::SameConfig),
    /// The options of a tunnel port contradict those of another one.
    // The second half is what logs of OVS are searched for.
    #[error("{port}: {problem}; {port}: could not set configuration (File exists)")]
    TunnelConflict {
        /// Port.
        port: String,
        /// What is wrong.
        problem: tunnel::config::Problem,
    },
    /// The datapath refused.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
}
