//! What actions do to one packet.
//!
//! A translation has the bits of a header rewritten that change, and those that it has looked at. So the actions of a flow write more bits than
//! those of a translation that looked at less, with the same outcome. They are compared by the bits that change in the packet at hand.

use std::sync::Arc;

use datapath::{Action, Rewrite};
use packet::{Key, Mask};

/// Whether two lists do the same to a packet with this key.
pub(super) fn do_the_same(one: &[Action], other: &[Action], packet: &Key) -> bool {
    one == other || effect(one, packet.clone()) == effect(other, packet.clone())
}

/// The actions without rewrites that change nothing, whatever is looked at. What other actions than rewrites do to headers is not followed: both lists
/// have the same ones there, or differ.
fn effect(actions: &[Action], mut packet: Key) -> Vec<Action> {
    let on_copy = |actions: &[Action], packet: &Key| effect(actions, packet.clone());
    let mut left = Vec::with_capacity(actions.len());
    for action in actions {
        left.push(match action {
            Action::Set(rewrite) => match changes(rewrite, &mut packet) {
                Some(rewrite) => Action::Set(Arc::new(rewrite)),
                None => continue,
            },
            Action::Clone(inner) => Action::Clone(on_copy(inner, &packet)),
            Action::CheckLength { size, longer, others } => {
                Action::CheckLength { size: *size, longer: on_copy(longer, &packet), others: on_copy(others, &packet) }
            }
            Action::Sample { probability, actions } => {
                Action::Sample { probability: *probability, actions: on_copy(actions, &packet) }
            }
            other => other.clone(),
        });
    }
    left
}

/// The part of a rewrite that changes something, which is done to the packet's key. `None` where nothing changes.
fn changes(rewrite: &Rewrite, packet: &mut Key) -> Option<Rewrite> {
    let mut changed = Rewrite { key: Key::new(), mask: Mask::wildcard() };
    let mut any = false;
    for block in rewrite.mask.0.present().iter() {
        let (values, mask) = (rewrite.key.block(block).words(), rewrite.mask.0.block(block).words());
        for (word, (value, mask)) in values.iter().zip(mask).enumerate() {
            let bits = (value ^ packet.block(block).words()[word]) & mask;
            if bits != 0 {
                any = true;
                packet.block_mut(block).words_mut()[word] ^= bits;
                changed.mask.0.block_mut(block).words_mut()[word] = bits;
                changed.key.block_mut(block).words_mut()[word] = value & bits;
            }
        }
    }
    any.then_some(changed)
}

#[cfg(test)]
mod tests {
    use datapath::PortNo;
    use packet::Field;

    use super::*;

    fn set(field: Field, value: u128, mask: u128) -> Action {
        let mut rewrite = Rewrite { key: Key::new(), mask: Mask::wildcard() };
        rewrite.key.set(field, value & mask);
        rewrite.mask.add(field, mask);
        Action::Set(Arc::new(rewrite))
    }

    #[test]
    fn rewrites_are_the_same_that_change_the_same() {
        let mut packet = Key::new();
        packet.set(Field::NwTtl, 64);
        packet.set(Field::NwDst, 0x0a00_0001);
        let output = || Action::Output(PortNo(1));
        let same = |one: &[Action], other: &[Action]| do_the_same(one, other, &packet);
        let one_bit = [set(Field::NwDst, 0x0a00_0003, 2), output()];
        assert!(same(&one_bit, &[set(Field::NwDst, 0x0a00_0003, u128::MAX), output()]));
        assert!(!same(&one_bit, &[set(Field::NwDst, 0x0a00_0002, u128::MAX), output()]), "another value");
        assert!(!same(&one_bit, &[output(), set(Field::NwDst, 0x0a00_0003, 2)]), "another order");
        assert!(same(&[set(Field::NwTtl, 64, 0xff), output()], &[output()]), "nothing changes");
        assert!(!same(&[set(Field::NwTtl, 63, 0xff), output()], &[output()]));
        // There and back: the second one changes something only where the first one has.
        let back = [set(Field::NwTtl, 63, 0xff), output(), set(Field::NwTtl, 64, 0xff), output()];
        assert!(!same(&back, &[set(Field::NwTtl, 63, 0xff), output(), output()]));
        assert!(same(&back, &[set(Field::NwTtl, 63, 0x7f), output(), set(Field::NwTtl, 64, 0x7f), output()]));
    }

    #[test]
    fn what_is_done_to_a_copy_stays_there() {
        let packet = Key::new();
        let to = |ttl| set(Field::NwTtl, ttl, 0xff);
        let copy = |inner: Action| Action::Clone(vec![inner]);
        assert!(!do_the_same(&[copy(to(9)), to(9)], &[copy(to(9))], &packet));
        assert!(do_the_same(&[to(9), copy(to(9))], &[to(9), Action::Clone(vec![])], &packet));
        let check = |ttl| Action::CheckLength { size: 9, longer: vec![to(ttl)], others: vec![to(0)] };
        assert!(do_the_same(&[check(0)], &[Action::CheckLength { size: 9, longer: vec![], others: vec![] }], &packet));
        assert!(!do_the_same(&[check(1)], &[check(0)], &packet));
    }
}
