//! What is looked up often takes no more memory where there is more to look in.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use datapath::sync::clock::ManualClock;
use datapath::{Config, Datapath};
use ofproto::{BridgeConfig, Switch, SwitchSettings};
use packet::Time;

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
fn one_bridge_is_found_without_a_copy_of_all() {
    let clock = Arc::new(ManualClock::new(Time(1_000_000_000)));
    let switch = Switch::new(SwitchSettings::default(), clock.clone());
    switch.attach(Datapath::new(Config::default(), clock));
    for n in 0..100 {
        switch.add_bridge(BridgeConfig::new(&format!("br{n}"), n)).expect("new");
    }
    let before = ALLOCATIONS.get();
    let found = switch.bridge("br99").expect("the last one");
    assert!(switch.bridge("br100").is_none());
    let allocations = ALLOCATIONS.get() - before;
    assert_eq!((found.name(), found.config().datapath_id), ("br99", 99));
    assert!(allocations <= 2, "{allocations}");
}
