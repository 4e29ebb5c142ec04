//! Which steps have a compact form.

use super::{Disposition, Step};
use crate::action::PortNo;
use crate::actions::compact::CompactRewrite;
use crate::actions::compact_form::Compact;
use crate::actions::tunnel::PlainPush;

/// The compact form of these steps, if the last of them puts the headers of a tunnel before packets, which are then sent to this port.
pub fn compact_push<'a>(mut steps: impl DoubleEndedIterator<Item = &'a Step> + Clone, port: PortNo) -> Option<Compact> {
    let Some(Step::TunnelPush(push, _)) = steps.next_back() else { return None };
    let rewrite = compact_form(steps.clone(), port).filter(|rewrite| rewrite.copies().is_empty())?;
    let push = PlainPush::new(push, port)?;
    Some(if steps.next().is_none() {
        Compact::Push(Box::new(push))
    } else {
        Compact::RewriteAndPush(Box::new((rewrite, push)))
    })
}

/// The compact form of these steps and this end, if they have one.
pub fn compact_form_to<'a>(steps: impl Iterator<Item = &'a Step>, end: &Disposition) -> Option<CompactRewrite> {
    let Disposition::Output { port, max_len: u32::MAX } = end else { return None };
    compact_form(steps, *port)
}

/// The compact form of these steps, if they have one, and of sending packets to this port then.
pub fn compact_form<'a>(steps: impl Iterator<Item = &'a Step>, port: PortNo) -> Option<CompactRewrite> {
    let mut compact = CompactRewrite::to(port);
    for step in steps {
        match step {
            Step::Rewrite(rewriter) => compact.set(rewriter)?,
            Step::PushVlan { tpid, tci } => compact.push_vlan(*tpid, *tci)?,
            Step::PopVlan => compact.pop_vlan()?,
            Step::Copy(Disposition::Output { port, max_len: u32::MAX }) => compact.copy_to(*port)?,
            Step::Copy(_)
            | Step::PushMpls { .. }
            | Step::PopMpls { .. }
            | Step::PopEthernet
            | Step::HasEthernet
            | Step::PushHeader(_)
            | Step::PopNsh
            | Step::Hash { .. }
            | Step::Ct(_)
            | Step::CtClear
            | Step::TunnelPush(..)
            | Step::Meter(_)
            | Step::Sample(_) => return None,
        }
    }
    Some(compact)
}
