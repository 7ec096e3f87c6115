//! Metrics: exactly what has happened is counted, and the docs and the dashboard name what the code feeds.
#![cfg(all(feature = "metrics", feature = "_redis"))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::observer::Event;
use leasehold::{Client, Error, MemoryBackend, MetricsObserver, MutexOptions};
use leasehold_support::RedisServer;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::sync::Notify;
use tokio::time::sleep;

const NAME: &str = "machine:42";
const MS: Duration = Duration::from_millis(1);

/// A client whose metrics go to a recorder of its own.
fn recorded(client: Client) -> (Client, Snapshotter) {
    let recorder = DebuggingRecorder::new();
    let values = recorder.snapshotter();
    (client.with_observer(Arc::new(MetricsObserver::new().recorder(recorder))), values)
}

/// The values by name and labels without `store`: counters, gauges, and the numbers of samples of histograms.
fn values(snapshotter: &Snapshotter) -> BTreeMap<String, i64> {
    let all = snapshotter.snapshot().into_vec().into_iter().map(|(key, _, _, value)| {
        let (_, key) = key.into_parts();
        let labels =
            key.labels().filter(|label| label.key() != "store").map(|label| label.value().to_owned());
        let name = key.name().trim_start_matches("leasehold_").to_owned();
        let value = match value {
            DebugValue::Counter(value) => i64::try_from(value).expect("a small number"),
            DebugValue::Gauge(value) => value.into_inner() as i64,
            DebugValue::Histogram(samples) => i64::try_from(samples.len()).expect("a small number"),
        };
        ([name].into_iter().chain(labels).collect::<Vec<_>>().join(" "), value)
    });
    all.collect()
}

#[tokio::test]
async fn on_redis_exactly_what_has_happened_is_counted_and_the_gauges_return_to_zero() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("metrics") else { return Ok(()) };
    let url = format!("redis://127.0.0.1:{}", server.port());
    let (client, snapshotter) = recorded(Client::connect(&url).await?);
    let renewed = Arc::new(Notify::new());
    let client = client.with_observer(Arc::new({
        let renewed = Arc::clone(&renewed);
        move |event: &Event<'_>| {
            if matches!(event, Event::RenewalAnswered { .. }) {
                renewed.notify_one();
            }
        }
    }));
    let other = Client::connect(&url).await?;
    let (mutex, others) = (client.mutex(NAME)?, other.mutex(NAME)?);

    // Twice from the store, once passed on; one is too late, one is dropped while it waits.
    let guard = mutex.lock().await?;
    assert!(mutex.try_lock().await?.is_none());
    assert!(mutex.lock_timeout(2000 * MS).await.is_err());
    assert!(tokio::time::timeout(50 * MS, mutex.lock()).await.is_err());
    guard.release().await?;
    let guard = mutex.lock().await?;
    let next = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    tokio::task::yield_now().await;
    let token = guard.token().get();
    guard.release().await?;
    let guard = next.await.expect("no panic")?;
    // Unless this machine was so slow that its turn was over.
    let was_passed_on = i64::from(guard.token().get() == token + 1);
    drop(guard);

    // From another client; lost by force.
    let guard = others.lock().await?;
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    sleep(20 * MS).await;
    guard.release().await?;
    let guard = waiting.await.expect("no panic")?;
    others.force_release().await?;
    guard.lost().await;
    drop(guard);

    // Renewed once, then the client is closed.
    let often = MutexOptions::new().ttl(Duration::from_secs(30)).renewal_period(Duration::from_secs(1));
    let guard = client.mutex_with("renewed", often)?.lock().await?;
    renewed.notified().await;
    let permits = client.fair_semaphore("permits", 3)?.acquire_many(2).await?;
    permits.release().await?;
    client.shutdown().await?;
    drop(guard);
    let closed = values_when(&snapshotter, "store_changes_total closed").await;

    // On a busy machine it was renewed more than once.
    let once = |name: &str, value: i64| if name.starts_with("renewal") { value.min(1) } else { value };
    let counted: Vec<_> = closed.iter().map(|(name, value)| (name.as_str(), once(name, *value))).collect();
    let from_store = 5 - was_passed_on;
    let expected = [
        ("acquired_total fair store", 1),
        ("acquired_total mutex client", was_passed_on),
        ("acquired_total mutex store", from_store),
        ("held fair", 0),
        ("held mutex", 0),
        ("hold_seconds fair", 1),
        ("hold_seconds mutex", 5),
        ("lost_total mutex client_closed", 1),
        ("lost_total mutex revoked", 1),
        ("not_acquired_total mutex busy", 1),
        ("not_acquired_total mutex cancelled", 1),
        ("not_acquired_total mutex timed_out", 1),
        ("released_total fair confirmed", 1),
        ("released_total mutex confirmed", 2 - was_passed_on),
        ("released_total mutex in_background", 1),
        ("released_total mutex passed_on", was_passed_on),
        ("renewal_late_seconds fair", 0),
        ("renewal_late_seconds mutex", 1),
        ("renewal_seconds fair", 0),
        ("renewal_seconds mutex", 1),
        ("renewals_total mutex renewed", 1),
        ("store_changes_total closed", 1),
        ("store_changes_total connected", 1),
        ("store_clients", 0),
        ("store_connected", 0),
        ("wait_seconds fair", 1),
        ("wait_seconds mutex", 5),
        ("waiting fair", 0),
        ("waiting mutex", 0),
    ];
    let expected: Vec<_> =
        expected.into_iter().filter(|(name, n)| *n != 0 || !name.contains("_total")).collect();
    assert_eq!(counted, expected);
    other.shutdown().await
}

/// Each with an observer of its own, or all with the same one.
#[tokio::test(start_paused = true)]
async fn the_clients_of_a_store_are_counted_and_those_that_can_reach_it() -> Result<(), Error> {
    for is_shared in [false, true] {
        let recorder = Arc::new(DebuggingRecorder::new());
        let snapshotter = recorder.snapshotter();
        let observer = || Arc::new(MetricsObserver::new().recorder(Arc::clone(&recorder)));
        let shared = observer();
        let (store, mut clients) = (MemoryBackend::new(), Vec::new());
        for _ in 0..3 {
            let link = Arc::new(store.peer());
            let client = Client::with_backend(Arc::clone(&link) as Arc<dyn Backend>);
            let observer = if is_shared { Arc::clone(&shared) } else { observer() };
            let client = client.with_observer(observer);
            // From its first use on, a store in memory is watched.
            client.mutex(NAME)?.lock().await?.release().await?;
            clients.push((link, client));
        }
        let (mut open, mut connected) = (0, 0);
        let mut are = async |expected: (i64, i64)| {
            let are_as_expected = || {
                let values = values(&snapshotter);
                // A snapshot takes the values out.
                open += values.get("store_clients").unwrap_or(&0);
                connected += values.get("store_connected").unwrap_or(&0);
                ready((open, connected) == expected)
            };
            leasehold_support::eventually(Duration::from_secs(20), are_as_expected).await;
        };
        are((3, 3)).await;
        clients[0].0.cut_off();
        are((3, 2)).await;
        clients[1].1.shutdown().await?;
        are((2, 1)).await;
        // It is not shut down.
        drop(clients.pop());
        are((1, 0)).await;
        clients[0].0.restore();
        are((1, 1)).await;
        clients.clear();
        are((0, 0)).await;
    }
    Ok(())
}

/// The values once one of them is there. A snapshot takes the values out, so they are added up.
async fn values_when(snapshotter: &Snapshotter, awaited: &str) -> BTreeMap<String, i64> {
    let mut all = BTreeMap::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !all.contains_key(awaited) {
        assert!(tokio::time::Instant::now() < deadline, "{awaited} is missing: {all:?}");
        sleep(10 * MS).await;
        for (name, value) in values(snapshotter) {
            *all.entry(name).or_insert(0) += value;
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn names_are_no_labels_unless_they_are_mapped_to_classes() -> Result<(), Error> {
    let (client, snapshotter) = recorded(Client::memory());
    client.mutex(NAME)?.lock().await?.release().await?;
    assert!(values(&snapshotter).keys().all(|key| !key.contains("machine")));

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let classes = |name: &str| name.split(':').next().unwrap_or_default().to_owned().into();
    let metrics = MetricsObserver::new().recorder(recorder).classes(classes);
    let client = Client::builder("memory:").observer(Arc::new(metrics)).connect().await?;
    for name in ["machine:42", "machine:43", "report:1"] {
        client.mutex(name)?.lock().await?.release().await?;
    }
    let values = values(&snapshotter);
    assert_eq!(values.get("acquired_total mutex machine store"), Some(&2), "{values:?}");
    assert_eq!(values.get("acquired_total mutex report store"), Some(&1), "{values:?}");
    Ok(())
}

/// Type, unit and labels of each metric.
type All = BTreeMap<String, (String, String, BTreeSet<String>)>;

/// What is described and registered: type, unit and labels of each name.
#[derive(Clone, Debug, Default)]
struct Named(Arc<Mutex<All>>);

impl Named {
    fn describe(&self, key: &KeyName, kind: &str, unit: Option<Unit>) {
        let unit = unit.filter(|unit| *unit != Unit::Count).map(|unit| unit.as_str().to_owned());
        let described = (kind.to_owned(), unit.unwrap_or_default(), BTreeSet::new());
        self.0.lock().expect("no panic").entry(key.as_str().to_owned()).or_insert(described);
    }

    fn register(&self, key: &Key, kind: &str) {
        let mut all = self.0.lock().expect("no panic");
        let described = all.get_mut(key.name()).expect("it is described first");
        assert_eq!(described.0, kind, "{key}");
        described.2.extend(key.labels().map(|label| label.key().to_owned()));
    }
}

impl Recorder for Named {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, "counter", unit);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, "gauge", unit);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&key, "histogram", unit);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.register(key, "counter");
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.register(key, "gauge");
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.register(key, "histogram");
        Histogram::noop()
    }
}

/// All metrics, with their types, units and labels.
async fn fed() -> Result<All, Error> {
    let named = Named::default();
    let metrics = MetricsObserver::new().recorder(named.clone());
    let client = Client::memory().with_observer(Arc::new(metrics));
    let mutex = client.mutex(NAME)?;
    let guard = mutex.lock().await?;
    assert!(mutex.try_lock().await?.is_none());
    sleep(Duration::from_secs(11)).await;
    mutex.force_release().await?;
    guard.lost().await;
    mutex.lock().await?.release().await?;
    let all = named.0.lock().expect("no panic").clone();
    Ok(all)
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The cells of the rows of a table, without backquotes.
fn rows<'a>(text: &'a str, header: &str) -> Vec<Vec<&'a str>> {
    let table = text.split_once(header).unwrap_or_else(|| panic!("no table {header}")).1;
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = |line: &'a str| {
        let line = line.trim_matches('|');
        line.split(" | ").map(|cell| cell.trim().trim_matches('`').trim()).collect()
    };
    rows.map(cells).collect()
}

fn listed(cell: &str) -> BTreeSet<String> {
    cell.split(',')
        .map(|word| word.trim().trim_matches('`').to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_docs_name_all_metrics_with_their_types_units_and_labels() -> Result<(), Error> {
    let fed = fed().await?;
    let text = fs::read_to_string(repository("docs/guide/observability.md")).expect("it is there");
    let documented: BTreeMap<_, _> = rows(&text, "| metric | type | unit | labels | what it is |")
        .into_iter()
        // An empty cell joins the bars around it.
        .map(|row| match row[..] {
            [name, kind, unit, labels, _] => {
                (name.to_owned(), (kind.to_owned(), unit.trim_matches('|').trim().to_owned(), listed(labels)))
            }
            [name, kind, labels, _] => {
                let labels = listed(labels.trim_start_matches('|').trim());
                (name.to_owned(), (kind.trim_matches('|').trim().to_owned(), String::new(), labels))
            }
            _ => panic!("not a row of the table: {row:?}"),
        })
        .collect();
    assert_eq!(documented, fed);
    let source = fs::read_to_string(repository("src/metrics_observer.rs")).expect("it is there");
    let missing: Vec<_> = fed.keys().filter(|name| !source.contains(&format!("/// | `{name}` |"))).collect();
    assert_eq!(missing, Vec::<&String>::new(), "in the documentation of `MetricsObserver`");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_dashboard_shows_all_metrics_and_no_others() -> Result<(), Error> {
    let text = fs::read_to_string(repository("docs/grafana.json")).expect("it is there");
    let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("queries"));
    let queries = targets.map(|target| target["expr"].as_str().expect("a query"));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = queries.flat_map(|query| query.split(move |c| !is_part(c)));
    let shown = words.filter(|word| word.starts_with("leasehold_"));
    let shown: BTreeSet<_> = shown.map(|word| word.trim_end_matches("_bucket").to_owned()).collect();
    let fed: BTreeSet<_> = fed().await?.into_keys().collect();
    assert_eq!(shown, fed);
    Ok(())
}

/// A `tracing` event in the source: target, level, message and fields.
type Traced = BTreeMap<(String, String, String), BTreeSet<String>>;

/// Every event with a target of its own, and every one at INFO or above, which must have one.
fn traced_in(source: &str, file: &Path, all: &mut Traced) {
    for level in ["error", "warn", "info", "debug"] {
        for (at, start) in source.match_indices(&format!("tracing::{level}!(")) {
            let arguments = arguments(&source[at + start.len()..]);
            let target = arguments.iter().find_map(|argument| argument.strip_prefix("target:"));
            let Some(target) = target else {
                assert_eq!(level, "debug", "{}: an event without a target: {arguments:?}", file.display());
                continue;
            };
            let place = arguments.iter().position(|argument| argument.starts_with('"')).expect("a message");
            let fields = arguments[..place].iter().filter(|argument| !argument.starts_with("target:"));
            let name = |field: &String| {
                let name = field.split('=').next().unwrap_or_default();
                name.trim().trim_start_matches(['%', '?']).to_owned()
            };
            let message = arguments[place].trim_matches('"').trim_matches('`').to_owned();
            let event = (target.trim().trim_matches('"').to_owned(), level.to_uppercase(), message);
            all.entry(event).or_default().extend(fields.map(name));
        }
    }
}

/// The arguments of a macro, whose text begins after the opening parenthesis.
fn arguments(text: &str) -> Vec<String> {
    let (mut arguments, mut depth, mut in_text, mut was_escape) = (vec![String::new()], 0, false, false);
    for c in text.chars() {
        match c {
            '"' if !was_escape => in_text = !in_text,
            '(' if !in_text => depth += 1,
            ')' if !in_text && depth == 0 => break,
            ')' if !in_text => depth -= 1,
            ',' if !in_text && depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        was_escape = c == '\\' && !was_escape;
        arguments.last_mut().expect("there is one").push(c);
    }
    arguments
        .iter()
        .map(|argument| argument.trim().to_owned())
        .filter(|argument| !argument.is_empty())
        .collect()
}

fn for_each_source(folder: &Path, read: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            for_each_source(&path, read);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            read(&path, &fs::read_to_string(&path).expect("text"));
        }
    }
}

#[test]
fn the_docs_name_all_events_that_are_an_interface() {
    let mut traced = Traced::new();
    for_each_source(&repository("src"), &mut |path, source| traced_in(source, path, &mut traced));
    let text = fs::read_to_string(repository("docs/guide/observability.md")).expect("it is there");
    let rows = rows(&text, "| target | level | message | fields |");
    let cell = |row: &[&str], n: usize| {
        row.get(n).copied().unwrap_or_default().trim_end_matches('|').trim().to_owned()
    };
    let documented: Traced = rows
        .iter()
        .map(|row| {
            let message = cell(row, 2).trim_matches('`').trim().trim_matches('`').to_owned();
            ((cell(row, 0), cell(row, 1), message), listed(&cell(row, 3)))
        })
        .collect();
    assert_eq!(documented, traced);
    let targets: BTreeSet<_> = traced.keys().map(|(target, ..)| target.clone()).collect();
    let expected = ["leasehold::client", "leasehold::lease", "leasehold::observer", "leasehold::store"];
    assert_eq!(targets, expected.map(str::to_owned).into());
}
