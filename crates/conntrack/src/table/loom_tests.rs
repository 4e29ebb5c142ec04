use super::*;
use crate::protocol::simple::Seen;
use loom::sync::Arc;

const NOW: Time = Time(1_000_000_000);

fn tuple(port: u16) -> Tuple {
    Tuple::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (port, 53), 0).unwrap()
}

fn contents(orig: Tuple, reply: Tuple, mark: u32) -> Contents {
    Contents { reply, mark, label: mark.into(), ..Contents::new(orig, Protocol::Simple(Seen::First)) }
}

fn table() -> Arc<Table> {
    Arc::new(Table::new(10, [1, 2]))
}

fn insert(table: &Table, orig: Tuple, reply: Tuple, mark: u32) -> Result<Reference, Refused> {
    table.insert(&contents(orig, reply, mark), Timeout::UdpFirst, NOW)
}

/// Two packets of one connection come in at once: one makes it, the other finds it.
#[test]
fn a_connection_is_made_once() {
    loom::model(|| {
        let table = table();
        let other = table.clone();
        let thread = loom::thread::spawn(move || insert(&other, tuple(1).reverse(), tuple(1), 2).is_ok());
        let here = insert(&table, tuple(1), tuple(1).reverse(), 1).is_ok();
        assert!(here ^ thread.join().unwrap());
        assert_eq!(table.limits.connections(), 1);
    });
}

/// Two connections want the same translated port.
#[test]
fn a_port_is_leased_once() {
    loom::model(|| {
        let table = table();
        let other = table.clone();
        let reply = tuple(9).reverse();
        let thread = loom::thread::spawn(move || insert(&other, tuple(1), reply, 1).is_ok());
        let here = insert(&table, tuple(2), reply, 2).is_ok();
        assert!(here ^ thread.join().unwrap());
    });
}

/// A connection is removed and its slot used again, while `read` reads some of its words: all of them are of the one or of
/// the other connection. (All words together are too many orders to try.)
fn while_a_slot_is_used_again(read: impl Fn(&slot::Slot, u32) + Copy + Send + Sync + 'static) {
    loom::model(move || {
        let slot = Arc::new(slot::Slot::new());
        let first = slot.fill(&contents(tuple(1), tuple(1).reverse(), 1), 10, None);
        let other = slot.clone();
        let reader = loom::thread::spawn(move || read(&other, first));
        assert!(slot.lock(first).expect("it is there").end().is_none());
        let second = slot.fill(&contents(tuple(2), tuple(2).reverse(), 2), 11, None);
        assert!(second != first);
        reader.join().unwrap();
    });
}

#[test]
fn what_is_found_belongs_to_one_connection() {
    while_a_slot_is_used_again(|slot, first| {
        if let Some((version, reply, _)) = slot.find(&tuple(1)) {
            assert_eq!((generation(version), reply), (first, false));
        }
    });
}

#[test]
fn tuples_belong_to_one_connection() {
    while_a_slot_is_used_again(|slot, first| {
        if let Some(tuples) = slot.tuples(first) {
            assert_eq!(tuples, [tuple(1), tuple(1).reverse()]);
        }
    });
}

#[test]
fn a_connection_is_removed_once() {
    loom::model(|| {
        let table = table();
        let first = insert(&table, tuple(1), tuple(9).reverse(), 1).unwrap();
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.remove(first));
        let here = table.remove(first);
        assert!(here ^ thread.join().unwrap());
        assert_eq!(table.limits.connections(), 0);
    });
}

/// While buckets are split, what was there before is found.
#[test]
fn growth_hides_nothing() {
    loom::model(|| {
        let index = Arc::new(Index::new());
        let mut growth = Growth::default();
        // Bucket 1 takes this entry when there are two.
        index.insert(&mut growth, 1, 7).unwrap();
        (0..3).for_each(|slot| index.insert(&mut growth, 2, slot).unwrap());
        let other = index.clone();
        let reader = loom::thread::spawn(move || {
            assert_eq!(other.find(1, |slot| (slot == 7).then_some(())), Some(()), "the entry was there all the time");
        });
        index.insert(&mut growth, 2, 4).unwrap();
        reader.join().unwrap();
    });
}

/// A mark and a label that are set together are read together.
#[test]
fn mark_and_label_are_read_together() {
    loom::model(|| {
        let table = table();
        let first = insert(&table, tuple(1), tuple(1).reverse(), 1).unwrap();
        let other = table.clone();
        let thread = loom::thread::spawn(move || other.mark(first, Some((2, u32::MAX)), Some((2, u128::MAX))));
        let (contents, _) = table.read(first).unwrap();
        assert_eq!(u128::from(contents.mark), contents.label);
        assert_eq!(thread.join().unwrap(), Some((2, 2)));
    });
}

/// A packet passes that was remembered, while its connection is removed and the slot used again: no deadline is replaced but the
/// connection's own.
#[test]
fn a_packet_of_a_connection_that_is_gone_changes_no_other() {
    while_a_slot_is_used_again(|slot, first| {
        let version = u64::from(first) << 32;
        if let Some(line) = slot.line(version, false) {
            assert_eq!(line.class_deadline as u32, 10);
            slot.exchange_deadline(line.class_deadline, 20);
        }
        let replaced = slot.set_deadline(first, 30);
        assert!(matches!(replaced, None | Some(10 | 20)));
    });
}

/// A packet that passes and one that changes the state put off the end at once: that of the new state holds, and the version has
/// changed.
#[test]
fn the_end_is_that_of_the_last_state() {
    loom::model(|| {
        let slot = Arc::new(slot::Slot::new());
        let first = slot.fill(&contents(tuple(1), tuple(1).reverse(), 1), 10, None);
        let other = slot.clone();
        let version = u64::from(first) << 32;
        let thread = loom::thread::spawn(move || {
            if let Some(line) = other.line(version, false) {
                other.exchange_deadline(line.class_deadline, 20);
            }
        });
        slot.lock(first).expect("it is there").set_state(&Protocol::Simple(Seen::Both));
        slot.set_deadline(first, 15);
        thread.join().unwrap();
        assert!(slot.exchange_deadline(u64::from(tuple(1).class) << 32 | 15, 16));
        assert!(slot.line(version, false).is_none());
    });
}
