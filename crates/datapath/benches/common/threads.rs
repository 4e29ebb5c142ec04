//! Threads that are measured: they go before others, and it can be sampled where their time goes.
//!
//! Sampling is for machines without performance counters: a timer interrupts a thread some ten thousand times a second and
//! notes the address at which it was. `scripts/stages.py` sums them up.

use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fs, io, mem, ptr};

/// Most samples of a run.
const MOST: usize = 1 << 18;

/// Nanoseconds between two samples: no multiple of what a batch may take.
const INTERVAL: i64 = 97_301;

static ADDRESSES: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Where the thread was interrupted.
#[cfg(target_arch = "x86_64")]
fn interrupted(context: &libc::ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

/// Not known.
#[cfg(not(target_arch = "x86_64"))]
fn interrupted(_: &libc::ucontext_t) -> usize {
    0
}

/// Does nothing but two atomic operations, so it may interrupt anything.
extern "C" fn note(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a context to handlers with SA_SIGINFO.
    let address = interrupted(unsafe { &*context.cast() });
    if let Some(place) = ADDRESSES.get(COUNT.fetch_add(1, Ordering::Relaxed)) {
        place.store(address, Ordering::Relaxed);
    }
}

/// Interrupts one thread again and again, until it is dropped.
struct Timer(libc::timer_t);

impl Timer {
    fn of(thread: i32) -> Timer {
        let time = libc::timespec { tv_sec: 0, tv_nsec: INTERVAL };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: zeros are valid values, and the pointers are of structures that live until the calls return.
        unsafe {
            let (mut timer, mut event): (libc::timer_t, libc::sigevent) = mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = thread;
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            assert_eq!(libc::timer_settime(timer, 0, &times, ptr::null_mut()), 0);
            Timer(timer)
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it was made by `of`, and is used no more.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// The thread of this name, which may just be starting: it names itself.
fn thread(name: &str) -> io::Result<i32> {
    for _ in 0..1000 {
        for task in fs::read_dir("/proc/self/task")?.flatten() {
            let is_it = fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name);
            if let Some(number) = task.file_name().to_str().and_then(|number| number.parse().ok()).filter(|_| is_it) {
                return Ok(number);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(io::Error::other(format!("there is no thread {name}")))
}

/// Has the thread of this name go before others on a core, where the system allows that.
pub fn prefer(name: &str, core: usize) -> io::Result<()> {
    let thread = thread(name)?;
    // SAFETY: zeros are valid values, the core is below the size of the set, and the structures live until the calls
    // return.
    unsafe {
        let (mut set, mut parameters): (libc::cpu_set_t, libc::sched_param) = mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(thread, size_of_val(&set), &set);
        parameters.sched_priority = 10;
        libc::sched_setscheduler(thread, libc::SCHED_FIFO, &parameters);
    }
    Ok(())
}

/// Writes samples of the thread of this name to `to`, taken during `work`. Its packets take so many cycles each when
/// nothing interrupts it.
pub fn sample(to: &Path, name: &str, cycles: f64, work: impl FnOnce()) -> io::Result<()> {
    COUNT.store(0, Ordering::Relaxed);
    // SAFETY: zeros are a valid action, and `note` may interrupt anything.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGALRM, &action, ptr::null_mut()), 0);
    }
    let timer = Timer::of(thread(name)?);
    work();
    drop(timer);

    let binary = std::env::current_exe()?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    let mut mappings = maps.lines().filter(|line| line.ends_with(&*binary.to_string_lossy()));
    let base = mappings.next().and_then(|line| usize::from_str_radix(line.split('-').next()?, 16).ok());
    let base = base.ok_or_else(|| io::Error::other("the program is not among its own mappings"))?;
    let mut text = format!("{}\n{cycles}\n", binary.display());
    for address in &ADDRESSES[..COUNT.load(Ordering::Relaxed).min(MOST)] {
        let address = address.load(Ordering::Relaxed).wrapping_sub(base);
        writeln!(text, "{address:#x} 1").expect("a string takes everything");
    }
    fs::write(to, text)
}
