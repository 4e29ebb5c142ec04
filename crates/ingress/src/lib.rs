//! Ingress filters: which of the frames that a port receives go on to classification.
//!
//! A filter is written as text: `drop dst net 198.18.0.0/15; limit 1000 tcp; pass host 10.0.0.1` (docs/ingress.md).
//! Rules are looked at in their order, and the first one whose expression matches a frame decides; a frame that
//! none matches passes. [`RuleSet`] is the compiled text, [`PortFilter`] the rule set in force at a port, with a
//! [`datapath::pipeline::ingress::Filter`] for each of its receive queues.
//!
//! Expressions are those of pcap-filter(7), and libpcap compiles them to classic BPF, which is verified and
//! interpreted here. Runs of rules that name an address or a prefix only need neither: they become one look-up.
//!
//! | module | what it is |
//! |---|---|
//! | [`rule`] | Rules, and their text |
//! | [`rule_set`] | Compiled rules: which one decides about a frame |
//! | [`libpcap`] | Expressions compiled by libpcap, which is loaded when it is first asked for |
//! | [`bpf`] | Classic BPF: verification and interpreter |
//! | [`ebpf`] | eBPF: XDP programs of object files, verified and run |
//! | [`jit`] | Native code for programs |
//! | [`prefix`] | Expressions that name a prefix only |
//! | [`prefix_set`] | The first of many such rules that matches a frame |
//! | [`prefix_table`] | The first of many prefixes that holds an address |
//! | [`few_prefixes`] | A few prefixes, compared with a whole batch at once |
//! | [`limit`] | Rate limits |
//! | [`counters`] | What the rules have counted |
//! | [`port_filter`] | The filter of a port and its receive queues |
//! | [`offload`] | What of a rule set a port can do by itself |
//! | [`fuzz`] | Entry points of the fuzz target |

pub mod bpf;
pub mod counters;
pub mod ebpf;
pub mod few_prefixes;
pub mod fuzz;
pub mod jit;
pub mod libpcap;
pub mod limit;
pub mod offload;
pub mod port_filter;
pub mod prefix;
pub mod prefix_set;
pub mod prefix_table;
pub mod rule;
pub mod rule_set;

pub use counters::RuleCounts;
pub use port_filter::PortFilter;
pub use rule::{Rule, RuleError, Verdict};
pub use rule_set::RuleSet;
