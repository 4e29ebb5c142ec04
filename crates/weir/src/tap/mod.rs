//! `weir tap`: copies of packets with what has become of each, as a capture file or as text.
//!
//! The datapath's workers copy packets (`datapath::tap`); here is what reads them. Each tap has a thread (`session`), which writes what it reads
//! as blocks of a capture file or as lines, and hands these to the control socket piece by piece. While a client does not take them, the thread
//! waits, and the workers count what is lost.
//!
//! - [`request`]: what is asked for, from the command's arguments
//! - [`filter`]: which packets, by an expression of tcpdump or by an OpenFlow match
//! - [`session`]: the thread of a tap
//! - [`verdict`]: what flows and rules say of a packet, in words
//! - [`output`]: what is seen, as blocks, lines or JSON
//! - [`pcapng`]: the blocks of a capture file
//! - [`line`]: a packet's headers in a line

pub mod filter;
pub mod line;
pub mod output;
pub mod pcapng;
pub mod request;
pub mod session;
pub mod verdict;
