//! Takes events of `tracing` to the [`Logger`].

use std::fmt::{self, Write as _};
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use super::level::Level;
use super::module::Module;
use super::{LogMessage, Logger};

/// The process's subscriber.
pub struct ToLogger(pub Arc<Logger>);

impl Subscriber for ToLogger {
    /// A place whose messages go nowhere costs one comparison: the answer is cached until [`Logger::apply`] changes
    /// something.
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span()
            && *metadata.level() != tracing::Level::TRACE
            && self.0.is_enabled(Module::of_target(metadata.target()), Level::from(*metadata.level()))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.0.loudest() {
            Level::Off | Level::Emer => LevelFilter::OFF,
            Level::Err => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Dbg => LevelFilter::DEBUG,
        })
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        self.0.log(&LogMessage {
            module: Module::of_target(metadata.target()),
            level: Level::from(*metadata.level()),
            place: std::ptr::from_ref(metadata).addr(),
            text: &(text.message + &text.fields),
            lines: &text.lines,
            fields: &text.named,
        });
    }

    // There are no spans.

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The message, the lines that follow it, and its fields: as ` name=value`, and each by itself.
#[derive(Default)]
struct Text {
    message: String,
    lines: String,
    fields: String,
    named: Vec<(&'static str, String)>,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => drop(write!(self.message, "{value:?}")),
            "lines" => drop(write!(self.lines, "{value:?}")),
            name => {
                let value = format!("{value:?}");
                let _ = write!(self.fields, " {name}={value}");
                self.named.push((name, value));
            }
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
