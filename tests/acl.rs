//! The user of `docs/stores/acl.md`: it has the rights that are needed, and no others. That they are enough is what the whole
//! suite shows when it is run as this user.
#![cfg(feature = "fred")]

use std::collections::BTreeSet;
use std::fs;
use std::future::ready;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use leasehold::backend::{Backend, Claim, Detail, Kind, LeaseRef, Limit, Request, Resource};
use leasehold::redis::RedisBackend;
use leasehold::{BackendError, Client, Error};
use leasehold_support::acl;
use leasehold_support::{Raw, RedisServer, Reply, eventually, more_rules, within};

const SECOND: Duration = Duration::from_secs(1);

/// What is sent apart from the scripts' own commands.
const SENT: [&str; 5] = ["eval", "evalsha", "ping", "publish", "subscribe"];

/// The commands in the text of the scripts, as rights name them.
fn called_by_scripts(dir: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("the scripts are there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            called_by_scripts(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).expect("a script is text");
        for call in text.split("call('").skip(1) {
            let mut words = call.split('\'');
            let command = words.next().expect("a command").to_ascii_lowercase();
            found.insert(match (&*command, words.nth(1)) {
                ("pubsub", Some(sub)) => format!("{command}|{}", sub.to_ascii_lowercase()),
                _ => command,
            });
        }
    }
}

#[test]
fn the_documented_acl_has_exactly_the_permissions_that_are_used() {
    let mut used: BTreeSet<_> = SENT.map(str::to_owned).into();
    called_by_scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/redis/lua"), &mut used);
    assert!(used.len() > 30, "{used:?}");
    let rules = acl::rules();
    let given: BTreeSet<_> =
        rules.iter().filter_map(|rule| rule.strip_prefix('+')).map(str::to_owned).collect();
    assert_eq!(given, used);
}

/// A server with the user of the docs, who has these rights as well.
fn server_with_user(left_out: &str, more: &[String]) -> Option<(RedisServer, Raw)> {
    let server = RedisServer::start_or_skip(left_out)?;
    let mut raw = server.raw();
    let rules = [acl::rules(), more.to_vec()].concat();
    let command =
        ["ACL", "SETUSER", "leasehold", "reset"].into_iter().chain(rules.iter().map(|rule| &**rule));
    assert_eq!(raw.send(&command.collect::<Vec<_>>()), Reply::ok());
    Some((server, raw))
}

async fn connect(server: &RedisServer) -> Result<Client, Error> {
    Client::connect(&format!("redis://leasehold:p%40ss%3Aword@127.0.0.1:{}", server.port())).await
}

/// One lock, held, waited for and handed over, one semaphore.
async fn use_everything(one: &Client, two: &Client) -> Result<(), Error> {
    let guard = one.mutex("{a}b")?.lock().await?;
    let waiter = tokio::spawn({
        let mutex = two.mutex("{a}b")?;
        async move { mutex.lock().await }
    });
    let mutex = one.mutex("{a}b")?;
    eventually(SECOND * 5, || async { mutex.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) })
        .await;
    guard.release().await?;
    within(SECOND * 5, waiter).await.expect("no panic")?.release().await?;
    one.counting_semaphore("c", 2)?.acquire_many(2).await?.release().await?;
    one.fair_semaphore("f", 2)?.acquire_many(2).await?.release().await
}

/// The ids of the connections that clients have named.
fn named(raw: &mut Raw) -> BTreeSet<String> {
    let clients = raw.send(&["CLIENT", "LIST"]).text().expect("text");
    let named = clients.lines().filter(|line| line.contains(" name=leasehold-"));
    named.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

/// Of what the server has denied, the commands.
fn denied(raw: &mut Raw) -> BTreeSet<String> {
    let log = raw.send(&["ACL", "LOG", "1000"]).array();
    let objects = log.into_iter().map(|entry| {
        let fields = entry.words();
        let at = fields.iter().position(|field| field == "object").expect("an object");
        fields[at + 1].clone()
    });
    objects.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_of_the_docs_is_denied_only_what_the_docs_call_optional() -> Result<(), Error> {
    let Some((server, mut raw)) = server_with_user("the user of the docs", &[]) else { return Ok(()) };
    let (one, two) = (connect(&server).await?, connect(&server).await?);
    use_everything(&one, &two).await?;
    // Redis 6.2 does not name subcommands.
    let optional = ["client", "client|id", "client|setname", "config", "config|get", "info", "role"];
    let denied = denied(&mut raw);
    assert!(denied.iter().all(|command| optional.contains(&&**command)), "{denied:?}");
    for raw_command in [&["GET", "lock"][..], &["GET", "other:a"], &["FLUSHALL"], &["KEYS", "*"]] {
        let mut theirs = server.raw();
        assert_eq!(theirs.send(&["AUTH", "leasehold", "p@ss:word"]), Reply::ok());
        let Reply::Error(refusal) = theirs.send(raw_command) else { panic!("{raw_command:?} is allowed") };
        assert!(refusal.starts_with("NOPERM"), "{refusal}");
    }
    one.shutdown().await?;
    two.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_optional_permissions_nothing_is_denied_and_earlier_connections_are_closed()
-> Result<(), Error> {
    let more = ["+client|kill", "+info", "+role"].map(more_rules).concat();
    let Some((server, mut raw)) = server_with_user("the optional rights", &more) else { return Ok(()) };
    let (one, two) = (connect(&server).await?, connect(&server).await?);
    let before = named(&mut raw);
    assert_eq!(before.len(), 6);
    assert_eq!(raw.send(&["CLIENT", "KILL", "USER", "leasehold"]).int(), 6);
    // On each new connection the client looks for the one before it.
    eventually(SECOND * 5, || {
        let now = named(&mut server.raw());
        ready(now.len() == 6 && now.is_disjoint(&before))
    })
    .await;
    use_everything(&one, &two).await?;
    let mut theirs = server.raw();
    assert_eq!(theirs.send(&["AUTH", "leasehold", "p@ss:word"]), Reply::ok());
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(
        theirs.send(&["CLIENT", "KILL", "ID", "999999", "ADDR", &address]).int(),
        0,
        "nobody, but allowed"
    );
    assert_eq!(denied(&mut raw), BTreeSet::new());
    one.shutdown().await?;
    two.shutdown().await
}

/// To list what is held is the one thing for which they need another right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_user_of_the_docs_has_labels_and_notes_and_lists_with_one_more_right() {
    let Some((server, mut raw)) = server_with_user("labels and lists", &[]) else { return };
    let url = format!("redis://leasehold:p%40ss%3Aword@127.0.0.1:{}", server.port());
    let store = RedisBackend::connect(&url).await.expect("accepted");
    for (key, kind, claim) in [
        ("lock:{t}a", Kind::Mutex, Claim::Sole),
        ("semaphore:b", Kind::Counting, Claim::Permits(1, Limit::stated(1))),
    ] {
        let resource = Resource::new(key, kind);
        let mut request = Request::new(LeaseRef::new(store.lease_id(), resource.clone()), claim, SECOND * 30);
        (request.label, request.note) = (Some("api-7".into()), Some("nightly".into()));
        store.request(&request).await.expect("granted");
        let seen = store.inspect(&resource, Detail::Full).await.expect("answered");
        let holder = &seen.holders[0];
        assert_eq!(
            (holder.label.as_deref(), holder.note.as_deref()),
            (Some("api-7"), Some("nightly")),
            "{key}"
        );
    }
    let refused: Vec<_> = store.list("lock:").collect().await;
    assert!(matches!(refused[..], [Err(BackendError::Refused { .. })]), "{refused:?}");
    let rules = more_rules("+scan");
    let command = ["ACL", "SETUSER", "leasehold"].into_iter().chain(rules.iter().map(|rule| &**rule));
    assert_eq!(raw.send(&command.collect::<Vec<_>>()), Reply::ok());
    raw.send(&["ACL", "LOG", "RESET"]);
    let listed: Vec<_> = store.list("").collect().await;
    assert!(listed.len() == 2 && listed.iter().all(Result::is_ok), "{listed:?}");
    assert_eq!(denied(&mut raw), BTreeSet::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_command_is_named_when_the_client_connects() {
    let Some((server, mut raw)) = server_with_user("missing rights", &[]) else { return };
    let rules = acl::rules();
    let mut unnamed = Vec::new();
    for missing in rules.iter().filter_map(|rule| rule.strip_prefix('+')) {
        let others = rules.iter().map(|rule| &**rule).filter(|rule| rule.strip_prefix('+') != Some(missing));
        let command: Vec<_> = ["ACL", "SETUSER", "leasehold", "reset"].into_iter().chain(others).collect();
        assert_eq!(raw.send(&command), Reply::ok());
        let connected = within(SECOND * 5, connect(&server)).await;
        let text = connected.map_or_else(|error| error.to_string(), |_| "connected".to_owned());
        let name = missing.split('|').next().unwrap_or_default();
        if !text.to_ascii_lowercase().contains(name) {
            unnamed.push((missing, text));
        }
    }
    assert!(unnamed.is_empty(), "{unnamed:?}");
}
