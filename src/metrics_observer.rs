//! Feeds the `metrics` facade. The names, units and labels are documented in docs/guide/observability.md, which a test
//! compares with this file.

use std::borrow::Cow;
use std::fmt;
use std::ptr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::{Kind, Status};
use crate::client::{Client, ClientBuilder};
use crate::observer::{Event, Observer, Subject};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit, with_recorder,
};

/// An [`Observer`] that feeds the [metrics](https://docs.rs/metrics) facade: [`ClientBuilder::metrics`] sets one.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::{Client, MetricsObserver};
///
/// // Install an exporter first, such as `metrics_exporter_prometheus::PrometheusBuilder::new().install()`.
/// let class = |name: &str| if name.starts_with("cart:") { "cart" } else { "other" }.into();
/// let observer = MetricsObserver::new().classes(class);
/// let client = Client::memory().with_observer(Arc::new(observer));
/// # drop(client);
/// ```
///
/// | metric | type | unit | labels |
/// |---|---|---|---|
/// | `leasehold_held` | gauge | | `store`, `kind` |
/// | `leasehold_waiting` | gauge | | `store`, `kind` |
/// | `leasehold_acquired_total` | counter | | `store`, `kind`, `source` |
/// | `leasehold_not_acquired_total` | counter | | `store`, `kind`, `outcome` |
/// | `leasehold_wait_seconds` | histogram | seconds | `store`, `kind` |
/// | `leasehold_released_total` | counter | | `store`, `kind`, `outcome` |
/// | `leasehold_lost_total` | counter | | `store`, `kind`, `reason` |
/// | `leasehold_hold_seconds` | histogram | seconds | `store`, `kind` |
/// | `leasehold_renewals_total` | counter | | `store`, `kind`, `outcome` |
/// | `leasehold_renewal_seconds` | histogram | seconds | `store`, `kind` |
/// | `leasehold_renewal_late_seconds` | histogram | seconds | `store`, `kind` |
/// | `leasehold_store_clients` | gauge | | `store` |
/// | `leasehold_store_connected` | gauge | | `store` |
/// | `leasehold_store_changes_total` | counter | | `store`, `status` |
///
/// The names of locks are no labels, because a program may use any number of them. A function may map each name to one
/// of few [classes](Self::classes), which then become the label `class`. What the values of the labels mean, and a
/// dashboard for Grafana, is in `docs/guide/observability.md`.
///
/// The metrics of a kind are registered with the recorder at its first event, and stay with that recorder, so install the
/// exporter first. All clients of a process may share one observer.
#[doc(alias = "prometheus")]
#[doc(alias = "grafana")]
pub struct MetricsObserver {
    recorder: Option<Box<dyn Recorder + Send + Sync>>,
    classes: Option<Box<Classes>>,
    /// By address.
    stores: List<String, Store>,
}

type Classes = dyn Fn(&str) -> Cow<'static, str> + Send + Sync;

/// The metrics of one store.
struct Store {
    /// By kind, without classes.
    kinds: [OnceLock<Metrics>; Kind::ALL.len()],
    /// By kind and class.
    classes: [List<Cow<'static, str>, Metrics>; Kind::ALL.len()],
    clients: Clients,
}

/// How many clients use a store.
struct Clients {
    open: Gauge,
    connected: Gauge,
}

/// The metrics of one kind of resource, of one class. Those with further labels are registered when they are used, by
/// the values of these.
struct Metrics {
    labels: Vec<Label>,
    held: Gauge,
    waiting: Gauge,
    wait: Histogram,
    hold: Histogram,
    renewal: Histogram,
    renewal_late: Histogram,
    acquired: Counters,
    not_acquired: Counters,
    released: Counters,
    lost: Counters,
    renewals: Counters,
}

/// A counter for each value of its last label.
struct Counters {
    name: &'static str,
    label: &'static str,
    by_value: List<&'static str, Counter>,
}

/// A handful of things by their keys, in the order in which they were first needed. They are never removed, so that
/// finding one takes no lock.
struct List<K, V>(OnceLock<Box<Entry<K, V>>>);

struct Entry<K, V> {
    key: K,
    value: V,
    next: List<K, V>,
}

/// Name, unit and description of each metric, by type.
const GAUGES: [(&str, &str); 4] = [
    (HELD, "Acquisitions that are held, each counted once."),
    (WAITING, "Requests that wait."),
    (STORE_CLIENTS, "Clients that use the store."),
    (STORE_CONNECTED, "Clients that can reach the store."),
];
const HISTOGRAMS: [(&str, &str); 4] = [
    (WAIT, "How long requests waited that have succeeded."),
    (HOLD, "How long locks and permits were held."),
    (RENEWAL, "How long the answers to renewals took."),
    (RENEWAL_LATE, "How long after they were due renewals were sent."),
];
const COUNTERS: [(&str, &str); 6] = [
    (ACQUIRED, "Requests that have succeeded, by who granted them."),
    (NOT_ACQUIRED, "Requests that have ended otherwise, by how."),
    (RELEASED, "Holds that were released, by what the release came to."),
    (LOST, "Holds that were lost, by reason."),
    (RENEWALS, "Renewals, by their answers."),
    (STORE_CHANGES, "States of the store that were reported: the first one, and each change."),
];

const HELD: &str = "leasehold_held";
const WAITING: &str = "leasehold_waiting";
const ACQUIRED: &str = "leasehold_acquired_total";
const NOT_ACQUIRED: &str = "leasehold_not_acquired_total";
const WAIT: &str = "leasehold_wait_seconds";
const RELEASED: &str = "leasehold_released_total";
const LOST: &str = "leasehold_lost_total";
const HOLD: &str = "leasehold_hold_seconds";
const RENEWALS: &str = "leasehold_renewals_total";
const RENEWAL: &str = "leasehold_renewal_seconds";
const RENEWAL_LATE: &str = "leasehold_renewal_late_seconds";
const STORE_CLIENTS: &str = "leasehold_store_clients";
const STORE_CONNECTED: &str = "leasehold_store_connected";
const STORE_CHANGES: &str = "leasehold_store_changes_total";

static METADATA: Metadata<'static> = Metadata::new("leasehold", Level::INFO, Some(module_path!()));

impl MetricsObserver {
    /// Feeds the recorder of the process: the exporter that the program installs.
    #[must_use]
    pub fn new() -> Self {
        Self { recorder: None, classes: None, stores: List::default() }
    }

    /// Feeds this recorder instead of the one of the process.
    ///
    /// ```
    /// use metrics_util::debugging::DebuggingRecorder;
    ///
    /// let observer = leasehold::MetricsObserver::new().recorder(DebuggingRecorder::new());
    /// # drop(observer);
    /// ```
    #[must_use]
    pub fn recorder(mut self, recorder: impl Recorder + Send + Sync + 'static) -> Self {
        self.recorder = Some(Box::new(recorder));
        self
    }

    /// Adds the label `class` to all metrics of locks and semaphores, with what this function makes of their names. It
    /// is called for every event, and for each class that it returns, all these metrics exist: return one of a few
    /// constants.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use leasehold::{Client, MetricsObserver};
    ///
    /// let metrics = MetricsObserver::new().classes(|name| match name.split_once(':') {
    ///     Some(("cart", _)) => "cart".into(),
    ///     Some(("report", _)) => "report".into(),
    ///     _ => "other".into(),
    /// });
    /// let client = Client::builder("memory:").observer(Arc::new(metrics)).connect_lazy()?;
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn classes(mut self, classes: impl Fn(&str) -> Cow<'static, str> + Send + Sync + 'static) -> Self {
        self.classes = Some(Box::new(classes));
        self
    }

    fn with_recorder<T>(&self, record: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.recorder {
            Some(recorder) => record(&**recorder),
            None => with_recorder(record),
        }
    }

    fn store(&self, address: &str) -> &Store {
        self.stores.find(|known| known == address, || (address.to_owned(), self.new_store(address)))
    }

    #[cold]
    fn new_store(&self, address: &str) -> Store {
        let register = |recorder: &dyn Recorder| {
            describe(recorder);
            let key = |name| Key::from_parts(name, vec![store_label(address)]);
            let gauge = |name| recorder.register_gauge(&key(name), &METADATA);
            Clients { open: gauge(STORE_CLIENTS), connected: gauge(STORE_CONNECTED) }
        };
        let (kinds, classes) = Default::default();
        Store { kinds, classes, clients: self.with_recorder(register) }
    }

    /// The metrics of what an event is about.
    fn of(&self, subject: &Subject<'_>) -> &Metrics {
        let (kind, store) = (subject.kind(), self.store(subject.store));
        let Some(classes) = &self.classes else {
            return store.kinds[kind as usize].get_or_init(|| self.new_metrics(subject.store, kind, None));
        };
        let class = classes(subject.name());
        let new = || (class.clone(), self.new_metrics(subject.store, kind, Some(class.clone())));
        store.classes[kind as usize].find(|known| *known == class, new)
    }

    #[cold]
    fn new_metrics(&self, address: &str, kind: Kind, class: Option<Cow<'static, str>>) -> Metrics {
        let mut labels = vec![store_label(address), Label::from_static_parts("kind", kind.as_str())];
        labels.extend(class.map(|class| Label::new("class", class)));
        let key = |name| Key::from_parts(name, labels.clone());
        self.with_recorder(|recorder| Metrics {
            held: recorder.register_gauge(&key(HELD), &METADATA),
            waiting: recorder.register_gauge(&key(WAITING), &METADATA),
            wait: recorder.register_histogram(&key(WAIT), &METADATA),
            hold: recorder.register_histogram(&key(HOLD), &METADATA),
            renewal: recorder.register_histogram(&key(RENEWAL), &METADATA),
            renewal_late: recorder.register_histogram(&key(RENEWAL_LATE), &METADATA),
            acquired: Counters::new(ACQUIRED, "source"),
            not_acquired: Counters::new(NOT_ACQUIRED, "outcome"),
            released: Counters::new(RELEASED, "outcome"),
            lost: Counters::new(LOST, "reason"),
            renewals: Counters::new(RENEWALS, "outcome"),
            labels: labels.clone(),
        })
    }

    fn count(&self, metrics: &Metrics, counters: &Counters, value: &'static str) {
        // The same text may be in several places.
        let is_meant = |known: &&'static str| ptr::eq(*known, value) || *known == value;
        let new = || (value, self.counter_for(metrics, counters, value));
        counters.by_value.find(is_meant, new).increment(1);
    }

    #[cold]
    fn counter_for(&self, metrics: &Metrics, counters: &Counters, value: &'static str) -> Counter {
        let mut labels = metrics.labels.clone();
        labels.push(Label::from_static_parts(counters.label, value));
        self.counter(counters.name, labels)
    }

    fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        self.with_recorder(|recorder| recorder.register_counter(&Key::from_parts(name, labels), &METADATA))
    }

    fn store_changed(&self, address: &str, status: Status, previous: Option<Status>) {
        let clients = &self.store(address).clients;
        let is_open = |status: Status| status != Status::Closed;
        change(&clients.open, previous.is_some_and(is_open), is_open(status));
        change(&clients.connected, previous.is_some_and(Status::is_connected), status.is_connected());
        let labels = vec![store_label(address), Label::from_static_parts("status", status.as_str())];
        self.counter(STORE_CHANGES, labels).increment(1);
    }
}

fn store_label(address: &str) -> Label {
    Label::new("store", address.to_owned())
}

impl Counters {
    const fn new(name: &'static str, label: &'static str) -> Self {
        Self { name, label, by_value: List(OnceLock::new()) }
    }
}

impl<K, V> List<K, V> {
    /// The value whose key is meant, which is added if there is none.
    fn find(&self, is_meant: impl Fn(&K) -> bool, new: impl Fn() -> (K, V)) -> &V {
        let mut place = self;
        loop {
            let entry = place.0.get_or_init(|| {
                let (key, value) = new();
                Box::new(Entry { key, value, next: Self::default() })
            });
            if is_meant(&entry.key) {
                return &entry.value;
            }
            place = &entry.next;
        }
    }
}

impl<K, V> Default for List<K, V> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

/// A client was or was not counted, and is or is not from now on.
fn change(gauge: &Gauge, was_counted: bool, is_counted: bool) {
    match (was_counted, is_counted) {
        (false, true) => gauge.increment(1),
        (true, false) => gauge.decrement(1),
        (false, false) | (true, true) => {}
    }
}

fn describe(recorder: &dyn Recorder) {
    let key = KeyName::from_const_str;
    for (name, text) in GAUGES {
        recorder.describe_gauge(key(name), Some(Unit::Count), text.into());
    }
    for (name, text) in HISTOGRAMS {
        recorder.describe_histogram(key(name), Some(Unit::Seconds), text.into());
    }
    for (name, text) in COUNTERS {
        recorder.describe_counter(key(name), Some(Unit::Count), text.into());
    }
}

impl Observer for MetricsObserver {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Waiting { subject } => self.of(subject).waiting.increment(1),
            Event::Acquired { subject, waited, had_to_wait, source, .. } => {
                let metrics = self.of(subject);
                metrics.end_wait(*had_to_wait);
                metrics.wait.record(*waited);
                metrics.held.increment(1);
                self.count(metrics, &metrics.acquired, source.as_str());
            }
            Event::NotAcquired { subject, had_to_wait, outcome, .. } => {
                let metrics = self.of(subject);
                metrics.end_wait(*had_to_wait);
                self.count(metrics, &metrics.not_acquired, outcome.as_str());
            }
            Event::RenewalSent { subject, late } => self.of(subject).renewal_late.record(*late),
            Event::RenewalAnswered { subject, took, outcome } => {
                let metrics = self.of(subject);
                metrics.renewal.record(*took);
                self.count(metrics, &metrics.renewals, outcome.as_str());
            }
            Event::Lost { subject, held, reason, .. } => {
                let metrics = self.of(subject);
                metrics.end_hold(*held);
                self.count(metrics, &metrics.lost, reason.as_str());
            }
            Event::Released { subject, held, outcome, .. } => {
                let metrics = self.of(subject);
                metrics.end_hold(*held);
                self.count(metrics, &metrics.released, outcome.as_str());
            }
            Event::StoreState { store, state, previous } => {
                self.store_changed(store, state.status, *previous);
            }
        }
    }
}

impl Metrics {
    fn end_wait(&self, had_to_wait: bool) {
        if had_to_wait {
            self.waiting.decrement(1);
        }
    }

    fn end_hold(&self, held: Duration) {
        self.held.decrement(1);
        self.hold.record(held);
    }
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver")
            .field("has_classes", &self.classes.is_some())
            .finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Feeds the metrics of the process: see [`MetricsObserver`], of which this sets a new one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// // Install the exporter before: `metrics_exporter_prometheus::PrometheusBuilder::new().install()`, for instance.
    /// let client = leasehold::Client::builder("memory:").metrics().connect().await?;
    /// # client.shutdown().await?;
    /// # Ok(()) }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn metrics(self) -> Self {
        self.observer(Arc::new(MetricsObserver::new()))
    }
}

impl Client {
    /// The same client, whose metrics are fed from now on: see [`ClientBuilder::metrics`].
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    #[must_use]
    pub fn with_metrics(self) -> Self {
        self.with_observer(Arc::new(MetricsObserver::new()))
    }
}
