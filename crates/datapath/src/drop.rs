//! Why packets end here: one reason and one counter each.

macro_rules! reasons {
    ($($variant:ident $name:literal $doc:literal;)*) => {
        /// A reason to drop a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $doc] $variant,)* }

        impl DropReason {
            /// Every reason, in order.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// Name in statistics.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }

            /// What it means, in words.
            pub const fn describe(self) -> &'static str {
                match self { $(DropReason::$variant => $doc,)* }
            }
        }
    };
}

reasons! {
    Rule "rule" "A flow says so: it has no actions.";
    UpcallQueueFull "upcall_queue_full" "The slow path is behind, and the port's share of its queue is used up.";
    UpcallError "upcall_error" "The slow path could not translate the packet.";
    RecursionTooDeep "recursion_too_deep" "Recirculated too often, or actions are nested too deeply.";
    NoSuchPort "no_such_port" "The flow sends to a port that has gone.";
    PortDown "port_down" "The output port is administratively down.";
    TooBig "too_big" "Longer than the output port's MTU and not to be segmented.";
    Malformed "malformed" "The frame is to be cut into segments, or short, and has no whole headers for that.";
    NoBuffer "no_buffer" "No buffer for a copy or for a header to be pushed.";
    TtlExceeded "ttl_exceeded" "TTL or hop limit is used up.";
    InPortDown "in_port_down" "The input port is administratively down, or does not receive.";
    PipelineDepth "pipeline_depth" "The OpenFlow tables resubmit too deeply.";
    TooManyResubmits "too_many_resubmits" "The OpenFlow tables resubmit too often.";
    StackTooDeep "stack_too_deep" "The OpenFlow tables push too much on the stack.";
    TooManyLabels "too_many_labels" "More MPLS labels or VLAN tags than can be handled.";
    TooMuchWork "too_much_work" "The OpenFlow tables ask for too many steps, or too many copies, for one packet.";
    RecirculationStorm "recirculation_storm" "One packet became too many by recirculation.";
    VlanNotAllowed "vlan_not_allowed" "The port does not carry this VLAN.";
    Reflection "reflection" "NORMAL would send the packet back to where it came from.";
}
