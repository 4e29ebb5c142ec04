//! `weir top`: what the switch does, on a terminal.
//!
//! A thread asks the daemon for its reports, again and again ([`poll`]); those of two times make a
//! [`Measurement`](crate::report::measurement::Measurement); the view that is chosen makes a table of it ([`views`]); what keys do to it is in [`screen`], what it looks like in [`draw`]. Only [`terminal`] knows the real one.
//!
//! - Text of the switch may hold anything: [`printable`](crate::printable) comes between it and the terminal, for every cell and every message.
//! - The terminal may have any size, also none at all.
//! - The daemon may stall or go away: keys work all the time, and the last measurement stays on the screen, with its age.
//!
//! Modules, each using only those before it: [`table`], [`views`], [`screen`], [`draw`], [`source`], [`rankers`], [`poll`],
//! [`terminal`].

pub mod draw;
pub mod poll;
pub mod rankers;
pub mod screen;
pub mod source;
pub mod table;
pub mod terminal;
pub mod views;
