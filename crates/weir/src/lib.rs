//! Weir: an OpenFlow virtual switch in user space.
//!
//! A source of the configuration ([`source`]) makes a desired state ([`config`]); the [`daemon`] has [`reconfigure`]
//! bring the switch to it.
//!
//! - [`cli`]: the command line
//! - [`config`]: the desired state, and what is wrong with it
//! - [`connections`]: how many peers a listener has, and who makes room
//! - [`daemon`]: runs the switch, whatever the source
//! - [`dashboard`]: a page in a browser, and what it is made of
//! - [`doctor`]: examines the machine
//! - [`explain`]: what decides what becomes of a packet
//! - [`features`]: what the datapath can do
//! - [`flow_text`]: flows of the configuration, as text
//! - [`http`]: the HTTP server
//! - [`metrics`]: what is measured, for Prometheus
//! - [`places`]: how much work is under way that has threads of its own
//! - [`printable`]: what may be written to a terminal or a log
//! - [`reconfigure`]: from what runs to what is wanted
//! - [`report`]: what the daemon tells about itself
//! - [`rundir`]: the run directory, pidfiles and sockets
//! - [`source`]: where the desired state comes from: a file or a database
//! - [`tap`]: copies of packets with what has become of each
//! - [`timer`]: sleeping by the daemon's clock
//! - [`top`]: what the switch does, on a terminal
//! - [`turn`]: whose turn it is to work on a long reply
//! - [`unixctl`]: the control socket
//! - [`vlog`]: the log
//! - [`whatif`]: what changes of flows would do

pub mod cli;
pub mod config;
pub mod connections;
pub mod daemon;
pub mod dashboard;
pub mod doctor;
pub mod explain;
pub mod features;
pub mod flow_text;
pub mod http;
pub mod metrics;
pub mod places;
pub mod printable;
pub mod reconfigure;
pub mod report;
pub mod rundir;
pub mod source;
pub mod tap;
pub mod timer;
pub mod top;
pub mod turn;
pub mod unixctl;
pub mod vlog;
pub mod whatif;
