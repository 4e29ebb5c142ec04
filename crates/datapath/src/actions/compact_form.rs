//! Compact forms of programs: what they do with most packets, in the one or two cache lines that are read of them then.

use packet::flow::extract::VlanLimit;
use packet::{Key, Packet};

use crate::actions::compact::CompactRewrite;
use crate::actions::tunnel::PlainPush;
use crate::classify::prefetch;

/// Compact forms of programs.
#[derive(Debug)]
pub enum Compact {
    /// None.
    None,
    /// A rewrite, and the port that the packet is sent to; or a flood.
    Rewrite(CompactRewrite),
    /// The headers of a tunnel, and the port.
    Push(Box<PlainPush>),
    /// The same for packets that are rewritten before.
    RewriteAndPush(Box<(CompactRewrite, PlainPush)>),
}

impl Compact {
    /// The rewrite, if it is one.
    #[inline(always)]
    pub fn rewrite(&self) -> Option<&CompactRewrite> {
        match self {
            Compact::Rewrite(rewrite) => Some(rewrite),
            Compact::None | Compact::Push(_) | Compact::RewriteAndPush(_) => None,
        }
    }

    /// The headers, if it puts such before packets.
    #[inline(always)]
    pub fn push(&self) -> Option<CompactPush<'_>> {
        match self {
            Compact::Push(push) => Some(CompactPush { rewrite: None, push }),
            Compact::RewriteAndPush(both) => Some(CompactPush { rewrite: Some(&both.0), push: &both.1 }),
            Compact::None | Compact::Rewrite(_) => None,
        }
    }
}

/// What a program does that puts headers of a tunnel before packets, if they are like most, and sends them.
#[derive(Clone, Copy)]
pub struct CompactPush<'a> {
    /// What is rewritten before.
    pub rewrite: Option<&'a CompactRewrite>,
    /// The headers, and the port.
    pub push: &'a PlainPush,
}

impl CompactPush<'_> {
    /// Has the processor read it.
    #[inline(always)]
    pub fn prefetch(&self) {
        let push = std::ptr::from_ref(self.push).cast::<u8>();
        prefetch(push);
        prefetch(push.wrapping_add(64));
        if let Some(rewrite) = self.rewrite {
            prefetch(std::ptr::from_ref(rewrite));
        }
    }

    /// By how many bytes a packet grows.
    #[inline(always)]
    pub fn growth(&self) -> u32 {
        self.longer() + self.push.growth()
    }

    /// By how many of them before it gets the headers.
    #[inline(always)]
    fn longer(&self) -> u32 {
        self.rewrite.map_or(0, CompactRewrite::growth)
    }

    /// Whether this can be done with the packet as it is: see [`PlainPush::takes`].
    #[inline(always)]
    pub fn takes(&self, packet: &Packet) -> bool {
        self.push.takes(packet, self.longer())
    }

    /// Does it, with packets that it can be done with. `key` is for an extraction, where that is needed.
    #[inline(always)]
    pub fn apply(&self, packets: &mut [Packet], key: &mut Key, vlan_limit: VlanLimit) {
        match self.rewrite {
            None => packets.iter_mut().for_each(|packet| self.push.push(packet)),
            Some(rewrite) => rewrite_and_push(rewrite, self.push, packets, key, vlan_limit),
        }
    }
}

/// A function of its own, so that what most tunnels need stays in registers.
#[inline(never)]
fn rewrite_and_push(
    rewrite: &CompactRewrite,
    push: &PlainPush,
    packets: &mut [Packet],
    key: &mut Key,
    vlan_limit: VlanLimit,
) {
    // A copy: the compiler would take each packet that is written for one that changes the rewrite.
    let rewrite = *rewrite;
    for packet in packets {
        rewrite.apply(packet, key, vlan_limit);
        push.push(packet);
    }
}
