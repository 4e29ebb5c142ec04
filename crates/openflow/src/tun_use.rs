//! Which tun_metadata fields an action names: they mean something only as long as a bridge's table has them.

use crate::action::{Action, CtZone, LearnDst, LearnSrc};
use crate::matching::{AnyField, Subfield};
use crate::tun_metadata::TunValue;

/// What an action does with a tun_metadata field.
#[derive(Debug)]
pub enum TunUseMut<'a> {
    /// It reads or writes bits of it.
    Part(&'a mut Subfield),
    /// It writes a constant.
    Value(&'a mut TunValue),
    /// It deletes the field with this number.
    Deleted(u8),
}

/// As [`TunUseMut`].
#[derive(Debug)]
pub enum TunUse<'a> {
    /// It reads or writes bits of it.
    Part(&'a Subfield),
    /// It writes a constant.
    Value(&'a TunValue),
    /// It deletes the field with this number.
    Deleted(u8),
}

/// The same walk, for reading and for writing.
macro_rules! walk {
    ($(#[$doc:meta])* $name:ident $uses:ident $iter:ident $($mutable:tt)?) => {
        impl Action {
            $(#[$doc])*
            pub fn $name<E>(
                &$($mutable)? self,
                see: &mut dyn FnMut($uses<'_>) -> Result<(), E>,
            ) -> Result<(), E> {
                let mut part = |part: &$($mutable)? Subfield| match part.field {
                    AnyField::Key(_) => Ok(()),
                    AnyField::Tun(_) => see($uses::Part(part)),
                };
                match self {
                    Action::OutputReg { src: used, .. }
                    | Action::StackPush(used)
                    | Action::StackPop(used)
                    | Action::CheckPktLarger { dst: used, .. } => part(used),
                    Action::RegMove { src, dst } => {
                        part(src)?;
                        part(dst)
                    }
                    Action::Bundle(bundle) => bundle.dst.$iter().try_for_each(part),
                    Action::Multipath(multipath) => part(&$($mutable)? multipath.dst),
                    Action::Learn(learn) => {
                        learn.result_dst.$iter().try_for_each(&mut part)?;
                        learn.specs.$iter().try_for_each(|spec| {
                            if let LearnSrc::Field(src) = &$($mutable)? spec.src {
                                part(src)?;
                            }
                            match &$($mutable)? spec.dst {
                                LearnDst::Match(dst) | LearnDst::Load(dst) => part(dst),
                                LearnDst::Output => Ok(()),
                            }
                        })
                    }
                    Action::SetTunMetadata(value) => see($uses::Value(value)),
                    Action::DeleteField(index) => see($uses::Deleted(*index)),
                    Action::Clone(inner) => inner.$iter().try_for_each(|action| action.$name(see)),
                    Action::Ct(ct) => {
                        if let CtZone::Field(zone) = &$($mutable)? ct.zone {
                            part(zone)?;
                        }
                        ct.actions.$iter().try_for_each(|action| action.$name(see))
                    }
                    _ => Ok(()),
                }
            }
        }
    };
}

walk! {
    /// Passes each use of a tun_metadata field by the action, and by those inside of it.
    tun_uses TunUse iter
}
walk! {
    /// As [`tun_uses`](Action::tun_uses), with the uses to be changed.
    tun_uses_mut TunUseMut iter_mut mut
}

/// The numbers of the tun_metadata fields that actions name, as bits.
pub fn tun_fields(actions: &[Action]) -> u64 {
    let mut fields = 0;
    for action in actions {
        let seen = action.tun_uses(&mut |used| {
            fields |= 1u64.checked_shl(used.index().into()).unwrap_or(0);
            Ok::<(), std::convert::Infallible>(())
        });
        match seen {
            Ok(()) => {}
        }
    }
    fields
}

impl TunUse<'_> {
    /// N of tun_metadataN.
    pub fn index(&self) -> u8 {
        match self {
            TunUse::Part(Subfield { field: AnyField::Tun(field), .. }) => field.index,
            TunUse::Part(_) => u8::MAX,
            TunUse::Value(value) => value.index,
            TunUse::Deleted(index) => *index,
        }
    }
}

#[cfg(test)]
mod tests {
    use packet::flow::text::NoNames;

    use super::*;
    use crate::text::parse_actions;

    #[test]
    fn no_use_is_missed() {
        let text = "output:tun_metadata0[0..15],load:5->tun_metadata1[0..3],push:tun_metadata2[0],pop:tun_metadata3[0],\
            check_pkt_larger(9)->tun_metadata4[1],move:tun_metadata5[0..7]->tun_metadata6[0..7],\
            bundle_load(eth_src,50,hrw,ofport,tun_metadata7[0..15],members:4),\
            multipath(eth_src,50,modulo_n,1,0,tun_metadata8[0..15]),\
            learn(tun_metadata9[0..7]=tun_metadata10[0..7],load:reg1->tun_metadata11[0..31],result_dst=tun_metadata12[7]),\
            set_field:7->tun_metadata13,delete_field:tun_metadata14,clone(set_field:1->tun_metadata15),\
            ct(commit,zone=tun_metadata16[0..15],exec(move:tun_metadata17[0..31]->ct_mark))";
        let mut actions = parse_actions(text, &NoNames).unwrap();
        assert_eq!(tun_fields(&actions), (1 << 18) - 1);
        let mut seen = 0;
        for action in &mut actions {
            action
                .tun_uses_mut(&mut |used| {
                    seen |= 1u64
                        << match used {
                            TunUseMut::Part(part) => TunUse::Part(part).index(),
                            TunUseMut::Value(value) => value.index,
                            TunUseMut::Deleted(index) => index,
                        };
                    Ok::<(), ()>(())
                })
                .unwrap();
        }
        assert_eq!(seen, (1 << 18) - 1);
        assert_eq!(tun_fields(&parse_actions("output:1,move:reg0->reg1,clone(resubmit(,1))", &NoNames).unwrap()), 0);
    }
}
