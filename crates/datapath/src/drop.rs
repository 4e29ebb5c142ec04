//! Why packets end here: one reason and one counter each, listed by the stage that raises it.
//!
//! To add a reason: one line below, the name of its counter in `coverage/show` (`drop_counter` in
//! `crates/weir/src/daemon/commands/coverage.rs`), and a test that raises it with a packet, named in the table of
//! `crates/ofproto/src/xlate/drop_tests.rs`. Neither compiles without it.

/// A part of a packet's way that may end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropStage {
    /// Reception from a port.
    Receive,
    /// The way of a miss to a handler and back.
    SlowPath,
    /// What the OpenFlow tables say: the drop is an action of the packet's flow.
    Translate,
    /// The actions of a flow, recirculation included.
    Act,
    /// Sending to a port.
    Output,
}

impl DropStage {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            DropStage::Receive => "receive",
            DropStage::SlowPath => "slow path",
            DropStage::Translate => "translate",
            DropStage::Act => "act",
            DropStage::Output => "output",
        }
    }
}

macro_rules! reasons {
    ($($stage:ident { $($variant:ident $name:literal $doc:literal;)* })*) => {
        /// A reason to drop a packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc] $variant,)*)* }

        impl DropReason {
            /// Every reason, in the order of the stages.
            pub const ALL: &'static [DropReason] = &[$($(DropReason::$variant,)*)*];

            /// Name in statistics.
            pub const fn name(self) -> &'static str {
                match self { $($(DropReason::$variant => $name,)*)* }
            }

            /// What it means, in words.
            pub const fn describe(self) -> &'static str {
                match self { $($(DropReason::$variant => $doc,)*)* }
            }

            /// The stage whose reason it is. Where a translation knows that another stage would drop the packet, the
            /// drop that it makes an action of has that stage's reason: [`NoSuchPort`](DropReason::NoSuchPort) for a
            /// port that the bridge does not have.
            pub const fn stage(self) -> DropStage {
                match self { $($(DropReason::$variant => DropStage::$stage,)*)* }
            }

            /// Whether it is counted at the port that the packet was to leave by, and not at the one that it came in by. Of a port
            /// that is not there, nothing can be counted.
            pub const fn is_of_output_port(self) -> bool {
                matches!(self.stage(), DropStage::Output) && !matches!(self, DropReason::NoSuchPort)
            }
        }
    };
}

reasons! {
    Receive {
        InPortDown "in_port_down" "The input port is administratively down, or does not receive.";
        IngressFilter "ingress_filter" "The input port's ingress filter refuses the packet.";
        IngressPolicer "ingress_policer" "The input port receives more than its policer lets pass.";
    }
    SlowPath {
        UpcallQueueFull "upcall_queue_full" "The slow path is behind, and the port's share of its queue is used up.";
        SampleLost "sample_lost" "The copy that a collector was to get found no room: the slow path is behind, or there is no buffer. The packet itself goes on.";
        UpcallError "upcall_error" "The slow path could not translate the packet, or does not know the packet-in that its flow asks for.";
    }
    Translate {
        Rule "rule" "A flow says so: it has no actions.";
        TtlExceeded "ttl_exceeded" "TTL or hop limit is used up.";
        VlanNotAllowed "vlan_not_allowed" "The input port, or every port to send to, does not carry this VLAN.";
        Reflection "reflection" "The packet would go back to where it came from.";
        ProtectedPort "protected_port" "The port that it comes from and the one that it is for are both protected.";
        BondAdmission "bond_admission" "A member of a bond has received a copy of what another one receives, or what the bond has sent itself.";
        ReservedAddress "reserved_address" "NORMAL does not forward frames to the addresses that bridges keep for themselves.";
        SpanningTree "spanning_tree" "The port that it comes from, or each one to send to, does not forward: the spanning tree keeps it from closing a loop.";
        NoMulticastReceiver "no_multicast_receiver" "No port of the VLAN is a member of the multicast group or leads to a router, and the bridge does not flood it.";
        MirrorPort "mirror_port" "The port that it comes from, or is for, is reserved for the output of a mirror.";
        Fragment "fragment" "The bridge drops IP fragments.";
        PipelineDepth "pipeline_depth" "The OpenFlow tables resubmit too deeply.";
        TooManyResubmits "too_many_resubmits" "The OpenFlow tables resubmit too often.";
        StackTooDeep "stack_too_deep" "The OpenFlow tables push too much on the stack.";
        TooManyLabels "too_many_labels" "More MPLS labels or VLAN tags than can be handled.";
        UnsupportedPacketType "unsupported_packet_type" "A header cannot be put before such a packet, or not be taken away from it.";
        TunnelPort "tunnel_port" "No tunnel port takes packets from this address with this key.";
        TunnelRoute "tunnel_route" "No route leads to the other end of the tunnel, or none by a port of a bridge.";
        TunnelBuild "tunnel_build" "The tunnel has no headers for such a packet.";
        TooMuchWork "too_much_work" "The OpenFlow tables ask for too many steps, or too many copies, for one packet.";
    }
    Act {
        RecursionTooDeep "recursion_too_deep" "Recirculated too often, or actions are nested too deeply.";
        RecirculationStorm "recirculation_storm" "One packet became too many by recirculation.";
        NoBuffer "no_buffer" "No buffer for a copy, for a segment, or for a header to be pushed.";
        FragmentOverlap "fragment_overlap" "A fragment that was to be tracked overlaps another one of its datagram, which is dropped whole.";
        FragmentExpired "fragment_expired" "A fragment that was to be tracked, and whose datagram was not whole in time.";
        FragmentPurged "fragment_purged" "A fragment that was held to be tracked when its port, or that of another one of its datagram, went away.";
        TunnelHeader "tunnel_header" "A packet that came through a tunnel has headers that are not whole, contradict each other, or are not known.";
        TunnelChecksum "tunnel_checksum" "A packet that came through a tunnel has a wrong checksum.";
        TunnelFragment "tunnel_fragment" "A fragment of a packet that was to leave a tunnel.";
        TunnelOption "tunnel_option" "A packet that came through a tunnel has an option that is not whole.";
        Congestion "congestion" "A packet has met congestion in a tunnel, and cannot say so (RFC 6040).";
        TunnelPush "tunnel_push" "No room for the headers of a tunnel, or the packet is too long for them.";
        Meter "meter" "The packet exceeds the rate of a meter.";
        Malformed "malformed" "The frame is to be cut into segments, or short, and has no whole headers for that; or a controller sends one without an Ethernet header.";
    }
    Output {
        NoSuchPort "no_such_port" "The flow sends to a port that has gone, or that never was, or where packets come out of tunnels.";
        PortDown "port_down" "The output port is administratively down, or is not to be sent to.";
        TooBig "too_big" "Longer than the output port's MTU and not to be segmented.";
        EgressPolicer "egress_policer" "The output port is sent more than its policer lets pass.";
        QueueFull "queue_full" "The output port is sent more than its rate, and the queue in which the rest waits is full.";
    }
}
