//! Mempools and packets in mbufs, with DPDK on ordinary memory. EAL can be started once in a process, so
//! the tests share it.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use packet::buffer::heap::HEAP;
use packet::{BATCH_SIZE, Batch, Offload, Packet};
use ports::dpdk::mbuf;
use ports::dpdk::mempool::{self, PoolRef};
use ports::dpdk::{EalState, Init, Settings, initialise, thread};

/// Starts DPDK; one test at a time counts mbufs.
fn dpdk() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let extra = "--no-huge --no-pci --no-telemetry -m 256";
    let settings = Settings { init: Init::On, extra: Some(extra.into()), ..Settings::default() };
    assert_eq!(initialise(&settings), EalState::Ready);
    turn
}

/// Mbufs in use, once this thread has given back what it gathers.
fn in_use(pool: &PoolRef) -> usize {
    thread::flush();
    let (all, free) = pool.count();
    all - free
}

#[test]
fn packets_become_mbufs_and_packets_again_in_place() {
    let _turn = dpdk();
    let pool = mempool::get(1500, 0).unwrap();
    let mut packet = (pool.leak().memory().allocate)(pool.leak().memory(), 64, 200).unwrap();
    packet.push_back(3).unwrap().copy_from_slice(b"abc");
    packet.push_front(2).unwrap().copy_from_slice(b"> ");
    let at = packet.data().as_ptr();
    let mbuf = mbuf::from_packet(&pool, false, packet).unwrap();
    let mut batch = Batch::new();
    // SAFETY: the mbuf is ours.
    let received = unsafe {
        assert_eq!(((*mbuf).pkt_len, (*mbuf).data_len, (*mbuf).nb_segs), (5, 5, 1));
        mbuf::to_packets(pool.leak(), &HEAP, &[mbuf], &mut batch)
    };
    assert_eq!((received.packets, received.bytes, received.dropped), (1, 5, 0));
    let packet = batch.pop().unwrap();
    assert_eq!((packet.data(), packet.data().as_ptr()), (&b"> abc"[..], at));
    let copy = packet.duplicate().unwrap();
    assert_eq!((copy.data(), copy.memory().name), (packet.data(), "dpdk"));
    assert_eq!(in_use(&pool), 2);
    drop((packet, copy));
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn packets_of_other_memories_are_copied_into_as_many_mbufs_as_they_need() {
    let _turn = dpdk();
    let pool = mempool::get(1500, 0).unwrap();
    let frame: Vec<u8> = (0..5000u32).map(|n| n as u8).collect();
    let too_long = mbuf::from_packet(&pool, false, Packet::from_slice(&frame));
    assert_eq!(too_long, Err(ports::TxDrop::TooLong), "too long for one mbuf");
    let mbufs = [&frame[..1000], &frame].map(|f| mbuf::from_packet(&pool, true, Packet::from_slice(f)).unwrap());
    assert_eq!(in_use(&pool), 4);
    let mut batch = Batch::new();
    // SAFETY: the mbufs are ours.
    let received = unsafe { mbuf::to_packets(pool.leak(), &HEAP, &mbufs, &mut batch) };
    assert_eq!((received.packets, received.dropped), (2, 0));
    assert_eq!((batch[0].data(), batch[0].memory().name), (&frame[..1000], "dpdk"));
    assert_eq!((batch[1].data(), batch[1].memory().name), (&frame[..], "heap"));
    drop(batch);
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn a_batch_is_sent_in_place_if_all_of_it_can_be() {
    let _turn = dpdk();
    let pool = mempool::get(1500, 0).unwrap();
    let memory = pool.leak().memory();
    let of_pool = |len: usize| {
        let mut packet = (memory.allocate)(memory, 64, len).unwrap();
        packet.push_back(len).unwrap().fill(len as u8);
        packet
    };
    let unfinished = Offload { flags: Offload::NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    let others: [fn(&mut Packet, Offload); 3] = [
        |packet, _| *packet = Packet::from_slice(b"of the heap"),
        |packet, offload| *packet.offload_mut() = offload,
        |packet, _| packet.offload_mut().gso_type = Offload::GSO_TCPV4,
    ];
    let mut mbufs = [MaybeUninit::uninit(); BATCH_SIZE];
    for other in others {
        let mut batch: Batch = [60, 70, 80].map(of_pool).into_iter().collect();
        other(&mut batch[2], unfinished);
        assert!(mbuf::all_in_place(&mut batch, &mut mbufs).is_none());
        assert_eq!((batch.len(), batch[1].data()), (3, &[70; 70][..]), "it stays as it is");
        other(&mut batch[0], unfinished);
        assert!(mbuf::all_in_place(&mut batch, &mut mbufs).is_none());
        assert_eq!(batch.len(), 3);
    }
    assert_eq!(in_use(&pool), 0);
    let mut batch: Batch = (60..60 + BATCH_SIZE).map(of_pool).collect();
    batch[0].pull_front(10);
    batch[1].truncate(14);
    let mbufs = mbuf::all_in_place(&mut batch, &mut mbufs).unwrap();
    assert_eq!((batch.len(), mbufs.len(), in_use(&pool)), (0, BATCH_SIZE, BATCH_SIZE));
    // SAFETY: the mbufs are ours.
    let received = unsafe { mbuf::to_packets(pool.leak(), &HEAP, mbufs, &mut batch) };
    assert_eq!((received.packets, received.dropped), (BATCH_SIZE, 0));
    assert_eq!((batch[0].data(), batch[1].data(), batch[31].data()), (&[60; 50][..], &[61; 14][..], &[91; 91][..]));
    packet::buffer::release(&mut batch);
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn of_whatever_is_given_back_together_each_pool_gets_its_own_once() {
    let _turn = dpdk();
    let (pool, small) = (mempool::get(1500, 0).unwrap(), mempool::get(100, 0).unwrap());
    let plain = |pool: &PoolRef| mbuf::from_packet(pool, false, Packet::from_slice(&[1; 60])).unwrap();
    for first in 0..6 {
        let shared = plain(&pool);
        // SAFETY: the mbuf is ours, twice from now on.
        unsafe { (*shared).refcnt = 2 };
        let chain = mbuf::from_packet(&pool, true, Packet::from_slice(&[2; 5000])).unwrap();
        let mut mbufs = [plain(&pool), plain(&pool), plain(&small), chain, shared, plain(&pool)];
        mbufs.rotate_left(first);
        assert_eq!((in_use(&pool), in_use(&small)), (7, 1));
        // SAFETY: the mbufs are ours, the shared one twice.
        unsafe {
            thread::give_back_all(&mut mbufs);
            assert_eq!((in_use(&pool), in_use(&small), (*shared).refcnt), (1, 0, 1), "from {first} on");
            thread::give_back_all(&mut [shared]);
        }
        assert_eq!(in_use(&pool), 0);
    }
    // What was given back is handed out again, as good as new.
    let mut all: Vec<_> = (0..64).map(|_| plain(&pool)).collect();
    // SAFETY: the mbufs are ours.
    unsafe { all.iter().for_each(|&mbuf| assert!((*mbuf).is_single() && (*mbuf).next.is_null())) };
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 64, "none twice");
    // SAFETY: as before.
    unsafe { thread::give_back_all(&mut all) };
    assert_eq!(in_use(&pool), 0);
}

#[test]
fn unfinished_checksums_are_told_and_heard_of() {
    let _turn = dpdk();
    let pool = mempool::get(1500, 0).unwrap();
    let mut frame = [0; 60];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    let unfinished = Offload { flags: Offload::NEEDS_CSUM, csum_start: 34, csum_offset: 6, ..Offload::NONE };
    let mut packet = Packet::from_slice(&frame);
    *packet.offload_mut() = unfinished;
    let mbuf = mbuf::from_packet(&pool, false, packet).unwrap();
    let mut batch = Batch::new();
    // SAFETY: the mbuf is ours.
    unsafe {
        assert_eq!((*mbuf).ol_flags, dpdk_sys::mbuf::TX_IPV4 | dpdk_sys::mbuf::TX_UDP_CKSUM);
        assert_eq!((*mbuf).tx_offload, dpdk_sys::mbuf::tx_offload(14, 20, 0, 0));
        (*mbuf).ol_flags = dpdk_sys::mbuf::RX_L4_CKSUM_NONE;
        mbuf::to_packets(pool.leak(), &HEAP, &[mbuf], &mut batch);
    }
    assert_eq!(*batch[0].offload(), unfinished);
}

#[test]
fn pools_are_shared_and_freed_when_unused() {
    let _turn = dpdk();
    let (a, b) = (mempool::get(1500, 0).unwrap(), mempool::get(2000, 0).unwrap());
    assert!(std::ptr::eq(a.leak(), b.leak()));
    let small = mempool::get(100, 0).unwrap();
    let memory = small.leak().memory();
    let packet = (memory.allocate)(memory, 0, 100).unwrap();
    let pool = small.leak();
    drop(small);
    assert!(!pool.raw().is_null(), "a packet is out");
    drop(packet);
    thread::flush();
    drop((a, b));
    assert!(pool.raw().is_null());
    assert!((memory.allocate)(memory, 0, 100).is_none());
    assert!(std::ptr::eq(mempool::get(100, 0).unwrap().leak(), pool), "it serves again");
    let error = mempool::get(20_000, 0).err().unwrap();
    assert!(error.contains("MTU 20000"), "{error}");
}

#[test]
fn mbufs_come_back_from_threads_that_end() {
    let _turn = dpdk();
    let pool = mempool::get(1500, 0).unwrap();
    let memory = pool.leak().memory();
    std::thread::spawn(move || {
        thread::attach();
        drop((0..40).map(|_| (memory.allocate)(memory, 0, 64).unwrap()).collect::<Vec<_>>());
    })
    .join()
    .unwrap();
    assert_eq!(in_use(&pool), 0);
}
