//! What reads bytes of others, as functions that are given nonsense: by `cargo fuzz` (`fuzz/`), and, beginning with the
//! same corpus, by the tests. They return whatever they are given, and panic if a promise is broken: nonsense is
//! refused or means what it says, what was written is read as it was, and nobody is granted what another one holds.

use super::{Event, Kind, LeaseId, Resource};
use super::{
    etcd, ledger as records, mysql, postgres, redis as on_redis, redlock, sqlite, zookeeper as on_zookeeper,
};
use crate::error::Error;
use crate::ticket::LeaseTicket;
use crate::{label, name};

/// What stands for a password in URLs.
const PASSWORD: &str = "hunter2";

/// The name of a lock and its prefix, which is the first line.
pub fn names(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    drop((label::label(Some(text)), label::check_note(text)));
    if let Some(id) = LeaseId::parse(text) {
        assert_eq!(id.to_string(), text);
    }
    let (prefix, name) = text.split_once('\n').unwrap_or(("", text));
    for kind in Kind::ALL {
        let Ok(resource) = name::resource(prefix, name, kind) else { return };
        assert_eq!((resource.prefix(), resource.name()), (prefix, name));
        assert_eq!(Resource::split_at(&resource.key, prefix.len(), kind).as_ref(), Some(&resource));
        on_redis::fuzzing::keys_of(&resource);
        etcd::fuzzing::keys_of(&resource);
        on_zookeeper::fuzzing::node_of(&resource);
    }
}

/// The URL of a store. Neither what is made of it nor the error shows a password.
pub fn urls(bytes: &[u8]) {
    let Ok(url) = std::str::from_utf8(bytes) else { return };
    // Options name files, which would be read.
    if url.contains("/dev") || url.contains("/proc") || url.contains('%') && url.contains("ssl") {
        return;
    }
    drop(shown(url));
    let Some((scheme, rest)) = url.split_once("://").filter(|_| !url.contains(PASSWORD)) else { return };
    if scheme.contains(':') {
        // A path in which another URL seems to be.
        return;
    }
    for shown in shown(&format!("{scheme}://user:{PASSWORD}@{rest}")) {
        assert!(!shown.contains(PASSWORD), "{shown}");
    }
}

/// What is shown of what each store makes of it.
fn shown(url: &str) -> Vec<String> {
    fn show<B: std::fmt::Debug>(builder: Result<B, Error>) -> String {
        match builder {
            Ok(builder) => format!("{builder:?}"),
            Err(error) => format!("{error} {error:?}"),
        }
    }
    vec![
        show(super::by_url::check(url)),
        show(on_redis::RedisBackend::builder(url)),
        show(redlock::RedlockBackend::builder(url)),
        show(etcd::EtcdBackend::builder(url)),
        show(on_zookeeper::ZookeeperBackend::builder(url)),
        show(postgres::PostgresBackend::builder(url)),
        show(mysql::MysqlBackend::builder(url)),
        show(sqlite::SqliteBackend::builder(url)),
    ]
}

/// A record of the ledger, as PostgreSQL, MySQL and SQLite store it.
pub fn ledger(bytes: &[u8]) {
    records::fuzzing::record(bytes);
}

/// What reaches a client as text: events as other stores pass them on, messages of Redis, and tickets.
pub fn events(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    postgres::fuzzed(text);
    if let Ok(event) = text.parse::<Event>() {
        assert_eq!(event.to_string().parse::<Event>().expect("an event that was written is read"), event);
    }
    if let Ok(ticket) = text.parse::<LeaseTicket>() {
        let again: LeaseTicket = ticket.expose().parse().expect("a ticket that was written is read");
        assert!(again == ticket, "{ticket:?}");
    }
    on_redis::fuzzing::message(text);
}

/// An answer of Redis.
pub fn redis(bytes: &[u8]) {
    on_redis::fuzzing::answers(bytes);
}

/// What is stored in etcd, and what a server answers.
pub fn etcd(bytes: &[u8]) {
    etcd::fuzzing::answers(bytes);
}

/// What is in nodes of ZooKeeper, and what a server sends.
pub fn zookeeper(bytes: &[u8]) {
    on_zookeeper::fuzzing::bytes(bytes);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::backend::ledger::random::Random;

    /// The corpus of a target, and what becomes of it by changes of a few bytes each.
    fn give(target: &str, function: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        let files = fs::read_dir(&corpus).unwrap().map(|file| fs::read(file.unwrap().path()).unwrap());
        let files: Vec<_> = files.collect();
        assert!(files.len() >= 5, "{target} has {} files", files.len());
        let mut random = Random::new(1);
        for file in &files {
            function(file);
            for _ in 0..50 {
                function(&changed(file, &mut random));
            }
        }
    }

    fn changed(file: &[u8], random: &mut Random) -> Vec<u8> {
        let mut bytes = file.to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64 + 1) as usize;
            match random.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.below(256) as u8),
                2 => bytes.extend_from_within(at..),
                _ => bytes.get_mut(at).into_iter().for_each(|byte| *byte = random.below(256) as u8),
            }
        }
        bytes
    }

    /// A test for each target, by its name.
    macro_rules! tests {
        ($($target:ident => $promise:ident,)+) => {
            $(#[test]
            fn $promise() {
                give(stringify!($target), $target);
            })+
        };
    }

    tests! {
        names => names_lead_back_to_their_resource,
        urls => urls_are_read_or_refused_without_showing_a_password,
        ledger => nobody_gets_what_another_one_holds_by_any_record,
        events => events_and_tickets_mean_what_they_say,
        redis => redis_may_answer_anything,
        etcd => etcd_may_contain_anything,
        zookeeper => zookeeper_may_contain_anything,
    }
}
