use super::*;
use crate::protocol::simple::Seen;
use loom::sync::Arc;

const NOW: Time = Time(1_000_000_000);

fn tuple(port: u16) -> Tuple {
    Tuple::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (port, 53), 0).unwrap()
}

fn contents(orig: Tuple, reply: Tuple, mark: u32) -> Contents {
    Contents {
        orig,
        reply,
        protocol: Protocol::Simple(Seen::First),
        mark,
        label: mark.into(),
        flags: 0,
        policy: 0,
        parent: None,
        skew: Default::default(),
    }
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

/// A connection is removed and its slot used again: a reader sees the one or the other, never parts of both.
#[test]
fn what_is_read_belongs_to_one_connection() {
    loom::model(|| {
        let slot = Arc::new(slot::Slot::new());
        let first = slot.fill(&contents(tuple(1), tuple(1).reverse(), 1), 10, None);
        let other = slot.clone();
        let reader = loom::thread::spawn(move || {
            if let Some((version, reply, _)) = other.find(&tuple(1)) {
                assert_eq!((generation(version), reply), (first, false));
                if let Some((contents, ..)) = other.read(first, |_| tuple(9)) {
                    assert_eq!((contents.orig, contents.mark, contents.label), (tuple(1), 1, 1));
                }
            }
        });
        assert!(slot.lock(first).expect("it is there").end().is_none());
        let second = slot.fill(&contents(tuple(2), tuple(2).reverse(), 2), 10, None);
        assert_eq!(slot.find(&tuple(2)).map(|(version, ..)| generation(version)), Some(second));
        reader.join().unwrap();
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
