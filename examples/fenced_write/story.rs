//! The story: one writer is paused, another one overtakes it, the first one wakes up.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use comfy_table::CellAlignment;
use leasehold::FencingToken;
use tokio::time::timeout;
use uuid::Uuid;

use crate::Args;
use crate::body::{Body, Pause};
use crate::failure::Failure;
use crate::loopback::Service;
use crate::storage::{Event, Record, Scene, Storage, What, display};
use crate::store::Store;
use crate::table::table;
use crate::writer::Writer;

/// The names of the tokens, from the first on.
const FIRST: usize = 33;
/// How long the story may make no progress beyond the leases it waits for.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// What the storage saw.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    events: Vec<Event>,
    record: Record,
    /// The token of the writer that was paused.
    held_up: Option<FencingToken>,
    pub(crate) late_write_accepted: Option<bool>,
    /// Whether the updates of both writers are in the record.
    pub(crate) keeps_both: bool,
}

pub(crate) async fn tell(args: &Args, fenced: bool) -> Result<Outcome, Failure> {
    let storage = Arc::new(Storage::new(fenced));
    let service = Service::start(Arc::clone(&storage)).await?;
    let (store, run) = (Store::at(&args.url), Uuid::new_v4().to_string());
    let writer = |number| {
        let (run, storage, ttl) = (run.clone(), service.address(), args.ttl);
        Body::start(&store, Writer { run, number, storage, ttl })
    };

    let first = writer(1)?;
    let first_id = first.process_id();
    let story = async {
        storage.reached(Scene::Sure).await;
        let pause = match first_id {
            Some(id) => Some(Pause::of(id).await?),
            None => None, // a thread that waits for an answer is blocked already
        };
        writer(2)?.ended().await?; // gets the lock, writes, releases
        storage.go_on(Scene::GoingOn);
        if let Some(pause) = pause {
            pause.end().await?;
        }
        storage.reached(Scene::Late).await;
        Ok(())
    };
    let limit = TIME_LIMIT + Duration::from_millis(args.ttl) * 2;
    let late =
        |_| Failure::Io(io::Error::new(io::ErrorKind::TimedOut, "the scenario did not finish in time"));
    timeout(limit, async { tokio::try_join!(first.ended(), story) }).await.map_err(late)??;

    let (events, record) = storage.contents();
    let (held_up, late_write_accepted) = storage.late_write().unzip();
    let keeps_both = record == Record::from([1, 2]);
    Ok(Outcome { events, record, held_up, late_write_accepted, keeps_both })
}

impl Outcome {
    /// What happened, in words, and what the storage said to it.
    fn words(&self, event: &Event) -> (String, &'static str) {
        match &event.what {
            What::Read => ("holds the lock and reads".to_owned(), ""),
            What::Sure if self.held_up == Some(event.token) => ("trusts its lease; PAUSED".to_owned(), ""),
            What::Sure => ("trusts its lease".to_owned(), ""),
            What::Write(record, true) => (format!("writes {}", display(record)), "accepted"),
            What::Write(record, false) => (format!("writes {}", display(record)), "REJECTED"),
            What::Told(how) => (format!("is notified: {how}"), ""),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.events.iter().map(|event| event.token).collect::<BTreeSet<_>>();
        let called = |token: FencingToken| FIRST + tokens.iter().filter(|earlier| **earlier < token).count();
        let rows = self.events.iter().map(|event| {
            let (does, storage) = self.words(event);
            let (at, token) = (format!("{} ms", event.at.as_millis()), event.token);
            [
                at,
                token.to_string(),
                called(token).to_string(),
                event.writer.to_string(),
                does,
                storage.to_owned(),
            ]
        });
        let mut table = table(["after", "token", "called", "writer", "", "storage"], rows);
        table.column_iter_mut().skip(4).for_each(|column| column.set_cell_alignment(CellAlignment::Left));
        writeln!(f, "{table}")?;
        let lost = if self.keeps_both { "nothing is lost" } else { "an update is lost" };
        writeln!(f, "final record: {}: {lost}", display(&self.record))
    }
}
