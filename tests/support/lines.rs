//! What is traced, for a test that is the only one of its program: what is traced on the crate's own thread can only be
//! collected for the whole process.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What is traced, one line per event.
#[derive(Clone, Debug)]
pub struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    is_wanted: fn(&Metadata<'_>) -> bool,
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").expect("a string grows");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        (self.is_wanted)(metadata)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.lines.lock().expect("no panic").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    /// Collects what is wanted, from now on.
    pub fn collect(is_wanted: fn(&Metadata<'_>) -> bool) -> Self {
        let lines = Self { lines: Arc::default(), is_wanted };
        tracing::subscriber::set_global_default(lines.clone()).expect("the only one");
        lines
    }

    /// Those that contain these words.
    pub fn with(&self, words: &str) -> Vec<String> {
        self.lines.lock().expect("no panic").iter().filter(|line| line.contains(words)).cloned().collect()
    }
}
