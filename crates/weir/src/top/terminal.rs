//! The real terminal: raw mode, keys, and what happens to the program meanwhile.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Size;
use rustix::event::{PollFd, PollFlags, Timespec, poll as poll_fds};
use rustix::io::Errno;
use tokio::signal::unix::{SignalKind, signal};

use super::draw::draw;
use super::poll::{self, Update};
use super::screen::Screen;
use super::source::Connect;

/// How long keys are waited for before updates are looked for.
const TURN: Duration = Duration::from_millis(50);

/// Most characters of a terminal that is drawn on.
const MOST_CELLS: u32 = 4_000_000;

/// How long the program may take to end after a signal.
const END: Duration = Duration::from_secs(2);

/// Shows the switch until a key or a signal ends it. The terminal is then as it was.
pub fn run(connect: Arc<Connect>, interval: Duration) -> io::Result<()> {
    let end = end_by_signal()?;
    check_size(ratatui::crossterm::terminal::size()?.into())?;
    let mut terminal = ratatui::try_init()?;
    let outcome = show(&mut terminal, connect, interval, &end);
    ratatui::try_restore().and(outcome)
}

fn show(terminal: &mut DefaultTerminal, connect: Arc<Connect>, interval: Duration, end: &AtomicBool) -> io::Result<()> {
    let (wants, wanted) = channel();
    let (tells, updates) = channel();
    // Ends with the program: it may be waiting for a daemon that does not answer.
    std::thread::Builder::new().name("poll".into()).spawn(move || poll::run(&connect, interval, &wanted, &tells))?;
    let (mut screen, mut asked, mut seen) = (Screen::default(), None, Instant::now());
    while !end.load(Ordering::Relaxed) {
        let now_wanted = screen.wanted();
        if asked.as_ref() != Some(&now_wanted) {
            // A thread that has panicked takes nothing; the hook has told.
            let _ = wants.send(now_wanted.clone());
            asked = Some(now_wanted);
        }
        // An interval may be long, and rankings take another one.
        screen.age = seen.elapsed().saturating_sub(2 * interval);
        check_size(terminal.size()?)?;
        terminal.draw(|frame| draw(frame, &mut screen))?;
        if !has_terminal(TURN)? {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the terminal has gone"));
        }
        if event::poll(Duration::ZERO)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release && !screen.press(key) => return Ok(()),
                // What was resized is drawn anew in any case.
                _ => {}
            }
        }
        for update in updates.try_iter() {
            seen = Instant::now();
            match update {
                Update::About(about) => screen.about = about,
                Update::Measurement(measurement, asked, problem) => screen.show(*measurement, asked, problem),
                Update::Lost(problem) => screen.lose(problem),
            }
        }
    }
    Ok(())
}

/// A screen is kept as a whole, some 80 bytes for each of its characters: a size that no terminal has would take all memory.
fn check_size(size: Size) -> io::Result<()> {
    if size.area() > MOST_CELLS {
        let problem = format!("the terminal is too large: {} columns, {} lines", size.width, size.height);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    Ok(())
}

/// Waits for a key, for `timeout` at most. False where the terminal has gone: of such a one crossterm reads the end again and again, and does not
/// return.
fn has_terminal(timeout: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        // Keys come by /dev/tty. A terminal that goes sends a signal.
        return event::poll(timeout).map(|_| true);
    }
    let mut looked_at = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    match poll_fds(&mut looked_at, Some(&timeout)) {
        Err(Errno::INTR) => Ok(true),
        Err(e) => Err(e.into()),
        Ok(_) => Ok(!looked_at[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)),
    }
}

/// Is set when a signal says that the program is to end, so that it can leave the terminal as it was.
fn end_by_signal() -> io::Result<Arc<AtomicBool>> {
    let end = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminate, mut hang_up, mut interrupt) = {
        let _within = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?)
    };
    let told = end.clone();
    let wait = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = hang_up.recv() => {}, _ = interrupt.recv() => {} }
        told.store(true, Ordering::Relaxed);
        // A thread that is stuck in what has gone does not see it.
        tokio::time::sleep(END).await;
        std::process::exit(1);
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || runtime.block_on(wait))?;
    Ok(end)
}
