//! What a client observes: any number of streams for each key, and one subscription at the store for all of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

#[cfg(feature = "postgres")]
use crate::options::within::ELECTION;

/// The keys that are observed. Several changes of a key that an observer has not waited for are one.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// There is a key for as long as somebody observes it.
    keys: Mutex<HashMap<Arc<str>, watch::Sender<()>>>,
    /// Notified when there is another key, or one less.
    altered: Notify,
}

/// Whether the record with this key may be the lock of an election, whose holders others observe.
#[cfg(feature = "postgres")]
pub(super) fn is_observable(key: &str) -> bool {
    key.contains(ELECTION)
}

/// What a subscription lacks, and what it need not contain any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) added: Vec<Arc<str>>,
    pub(super) removed: Vec<Arc<str>>,
}

impl Observed {
    /// Yields whenever this key is [told](Self::tell).
    pub(super) fn observe(self: &Arc<Self>, key: &Arc<str>) -> BoxStream<'static, ()> {
        let receiver = self.keys.lock().entry(Arc::clone(key)).or_default().subscribe();
        self.altered.notify_one();
        let observer =
            Observer { observed: Arc::clone(self), key: Arc::clone(key), receiver: Some(receiver) };
        let changes = stream::unfold(observer, async |mut observer| {
            observer.receiver.as_mut()?.changed().await.ok()?;
            Some(((), observer))
        });
        changes.chain(stream::pending()).boxed()
    }

    /// This key may have changed.
    pub(super) fn tell(&self, key: &str) {
        if let Some(observers) = self.keys.lock().get(key) {
            observers.send_replace(());
        }
    }

    /// Each of these may have changed.
    #[cfg(feature = "postgres")]
    pub(super) fn tell_those(&self, have_changed: impl Fn(&str) -> bool) {
        let keys = self.keys.lock();
        keys.iter()
            .filter(|(key, _)| have_changed(key))
            .for_each(|(_, observers)| observers.send_replace(()));
    }

    /// Each of them may have changed, unseen.
    #[cfg(feature = "_redis")]
    pub(super) fn tell_all(&self) {
        self.keys.lock().values().for_each(|observers| observers.send_replace(()));
    }

    /// Whether nobody observes anything.
    #[cfg(feature = "zookeeper")]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.lock().is_empty()
    }

    /// Returns when what is [due](Self::due) may have changed.
    pub(super) async fn altered(&self) {
        self.altered.notified().await;
    }

    /// What is to be done so that these keys are subscribed that are observed.
    pub(super) fn due(&self, subscribed: &BTreeSet<Arc<str>>) -> Due {
        let keys = self.keys.lock();
        let added = keys.keys().filter(|key| !subscribed.contains(*key)).cloned().collect();
        let removed = subscribed.iter().filter(|key| !keys.contains_key(*key)).cloned().collect();
        Due { added, removed }
    }
}

/// One of those that observe a key.
struct Observer {
    observed: Arc<Observed>,
    key: Arc<str>,
    /// `None` once it is dropped.
    receiver: Option<watch::Receiver<()>>,
}

impl Drop for Observer {
    fn drop(&mut self) {
        let mut keys = self.observed.keys.lock();
        self.receiver = None;
        if keys.get(&self.key).is_some_and(|observers| observers.receiver_count() == 0) {
            keys.remove(&self.key);
            drop(keys);
            self.observed.altered.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn observers_of_a_key_share_it_and_the_last_one_to_go_takes_it_along() {
        let (observed, key) = (Arc::new(Observed::default()), Arc::<str>::from("election:a"));
        let mut subscribed = BTreeSet::new();
        let (mut one, mut two) = (observed.observe(&key), observed.observe(&key));
        let due = observed.due(&subscribed);
        assert_eq!(due, Due { added: vec![Arc::clone(&key)], removed: vec![] });
        subscribed.extend(due.added);
        assert_eq!(observed.due(&subscribed), Due::default());
        observed.tell("election:b");
        assert_eq!(one.next().now_or_never(), None);
        observed.tell(&key);
        observed.tell(&key);
        assert_eq!(one.next().now_or_never(), Some(Some(())));
        assert_eq!(one.next().now_or_never(), None, "they were one");
        drop(one);
        assert_eq!(observed.due(&subscribed), Due::default());
        assert_eq!(two.next().now_or_never(), Some(Some(())));
        while observed.altered().now_or_never().is_some() {}
        drop(two);
        assert!(observed.altered().now_or_never().is_some());
        assert_eq!(observed.due(&subscribed), Due { added: vec![], removed: vec![key] });
    }

    /// A stream that is being waited for is told as well.
    #[tokio::test]
    async fn whoever_waits_is_told() {
        let (observed, key) = (Arc::new(Observed::default()), Arc::<str>::from("election:a"));
        let mut changes = observed.observe(&key);
        let waits = tokio::spawn(async move { changes.next().await });
        tokio::task::yield_now().await;
        observed.tell("election:a");
        assert_eq!(waits.await.unwrap(), Some(()));
    }
}
