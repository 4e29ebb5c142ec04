//! The commands of the control socket while the daemon waits for the first configuration: for the database, or for its
//! lock.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use super::vlog;
use crate::unixctl::command::{Reply, Run};
use crate::unixctl::{Command, Commands};
use crate::vlog::Logger;

/// What the commands work on.
pub struct WaitingContext {
    /// Told when the daemon is to end.
    pub exit: Rc<Notify>,
    /// What is logged where.
    pub log: Arc<Logger>,
    /// What it answers to who asks for its version.
    pub version: String,
}

impl vlog::Logs for WaitingContext {
    fn log(&self) -> &Logger {
        &self.log
    }
}

/// The table for servers.
pub const TABLE: Commands<WaitingContext> = Commands(GROUPS);

static GROUPS: &[&[Command<WaitingContext>]] = &[COMMANDS, &vlog::commands()];

static COMMANDS: &[Command<WaitingContext>] = &[
    Command {
        name: "exit",
        usage: "[--cleanup]",
        args: (0, 1),
        help: "Ends the daemon.",
        run: Run::Quick(|context, _| {
            context.exit.notify_one();
            Reply::Now(Ok(String::new()))
        }),
    },
    Command {
        name: "list-commands",
        usage: "",
        args: (0, 0),
        help: "Lists the commands with their arguments.",
        run: Run::Quick(|_, _| Reply::Now(Ok(TABLE.list()))),
    },
    Command {
        name: "version",
        usage: "",
        args: (0, 0),
        help: "Prints the version of the daemon.",
        run: Run::Quick(|context, _| Reply::Now(Ok(context.version.clone()))),
    },
];
