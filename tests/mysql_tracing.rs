//! What an operator reads about a MySQL server. The only test of its program: what is traced on the crate's own thread can only be
//! collected for the whole process.
#![cfg(feature = "mysql")]

#[path = "support/mysql.rs"]
mod server;
mod support;

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Client;
use server::{MysqlServer, PASSWORD, USER};
use support::eventually;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const SOON: Duration = Duration::from_secs(10);

/// Everything that is traced, one line per event.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, " {field}={value:?}").expect("a string grows");
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().expect("no panic").push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Lines {
    fn with(&self, words: &str) -> Vec<String> {
        self.0.lock().expect("no panic").iter().filter(|line| line.contains(words)).cloned().collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_is_traced_once_when_it_goes_and_once_when_it_is_back_and_never_its_password() {
    let left_out = "what is traced about MySQL";
    let Some(mut server) = MysqlServer::start_or_skip(left_out) else { return };
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).expect("the only one");
    let client = server.client().await;
    let mutex = client.mutex("x").expect("valid");
    for round in 1..=2 {
        server.kill();
        mutex.try_lock().await.map(drop).expect_err("it is away");
        eventually(SOON, || async { !client.state().status.is_connected() }).await;
        server.restart();
        // Nothing has to be asked for.
        eventually(SOON, || async { client.state().status.is_connected() }).await;
        mutex.lock().await.expect("free").release().await.expect("held");
        let (gone, back) =
            (lines.with("the store is disconnected"), lines.with("the store is connected again"));
        assert_eq!((gone.len(), back.len()), (round, round), "{gone:?} {back:?}");
        assert!(gone[0].starts_with("WARN") && gone[0].contains(&server.address()), "{gone:?}");
        assert!(back[0].starts_with("INFO") && back[0].contains(&server.address()), "{back:?}");
    }
    client.shutdown().await.expect("released");
    let url = format!("mysql://{USER}:wrong{PASSWORD}@127.0.0.1:{}/{USER}", server.port());
    Client::connect(&url).await.map(drop).expect_err("another password");
    assert_eq!(lines.with(PASSWORD), [""; 0]);
}
