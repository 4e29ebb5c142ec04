//! A filter does not allocate when it looks at frames.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use datapath::pipeline::ingress::Filter as _;
use ingress::ebpf::PortProgram;
use ingress::ebpf::assembler::{
    add, assemble, call, copy, exit, load, map, maps, set, skip_if_greater, store, store_constant,
};
use ingress::{PortFilter, RuleSet};
use packet::{Packet, Time};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

#[allow(unsafe_code)]
// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|n| n.set(n.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_filter_does_not_allocate() {
    let rules = "drop dst net 10.0.0.0/30; drop ip6 net 2001:db8::/32; limit 5 udp; pass tcp; drop ether[0] & 1 = 1";
    // A program that looks the protocol up in a hash, and adds what it does not find.
    let [m1, m2] = map(1, 1);
    let words = [
        load(4, 6, 1, 0),
        load(4, 7, 1, 4),
        copy(2, 6),
        add(2, 24),
        skip_if_greater(2, 7, 16),
        load(1, 3, 6, 23),
        store(4, 10, -4, 3),
        store_constant(8, 10, -16, 9),
        copy(2, 10),
        add(2, -4),
        copy(3, 10),
        add(3, -16),
        set(4, 0),
        m1,
        m2,
        call(2),
        copy(2, 10),
        add(2, -4),
        m1,
        m2,
        call(1),
        set(0, 2),
        exit(),
    ];
    for is_native in [true, false] {
        let machine = assemble(&words, maps()).unwrap();
        let machine = if is_native { machine } else { machine.interpreted() };
        let program = Some(Arc::new(PortProgram::new(machine, "/p.o")));
        does_not_allocate(PortFilter::new(RuleSet::compile(rules).unwrap()).with_program(program));
    }
}

fn does_not_allocate(filter: PortFilter) {
    let mut queue = filter.for_queue();
    let frame = |n: u8| {
        let mut frame = [n; 60];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[30..34].copy_from_slice(&[10, 0, 0, n]);
        frame[23] = [6, 17, 1][usize::from(n % 3)];
        Packet::from_slice(&frame)
    };
    let batch: Vec<_> = (0..32).map(frame).collect();
    let allocated = || ALLOCATIONS.with(Cell::get);
    let (before, mut refused) = (allocated(), 0);
    for now in 0..100 {
        refused |= queue.refused(&batch, Time(now * 1_000_000));
    }
    assert_eq!(allocated(), before);
    assert_eq!(refused & 0xf, 0xf);
    assert!(filter.counts().iter().filter(|counts| counts.packets > 0).count() >= 3);
    assert!(allocated() > before, "allocations are counted");
    assert!(filter.program().unwrap().machine().maps()[1].elements(9).len() >= 2);
}
