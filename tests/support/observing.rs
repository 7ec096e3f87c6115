//! Observers of an election on a store that pushes. They look once in ten minutes, so what they see was pushed.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold::{Client, Election, Leader, MutexOptions};

use crate::{begun, eventually, within};

/// What a busy machine may take for anything. What it took is printed.
const SOON: Duration = Duration::from_secs(20);
/// Nobody dies here.
const LASTING: Duration = Duration::from_secs(60);
const NEVER: Duration = Duration::from_secs(600);

/// Two observers of one client, and two candidates in others.
pub struct Observing {
    observers: Vec<BoxStream<'static, Option<Leader>>>,
    candidates: [Election; 2],
    queue: leasehold::DistMutex,
    pub client: Client,
}

impl Observing {
    /// The observers, and the candidates, of the store at these URLs.
    pub async fn begin(url: &str, of_candidates: &str) -> Self {
        let connect = |url: &str| {
            let client = Client::connect_lazy(url).expect("a URL");
            client.with_mutex_options(MutexOptions::new().ttl(LASTING))
        };
        let (client, other) = (connect(url), connect(of_candidates));
        let election = client.election("reports").expect("valid");
        let candidates =
            [&other, &connect(of_candidates)].map(|client| client.election("reports").expect("valid"));
        let queue = other.mutex_with("reports", MutexOptions::new().prefix("election:")).expect("valid");
        let observers = (0..2).map(|_| election.observe_looking_every(NEVER).boxed()).collect();
        let mut observing = Self { observers, candidates, queue, client };
        assert_eq!(observing.next().await, None, "nobody leads");
        observing
    }

    /// What both report next.
    pub async fn next(&mut self) -> Option<Leader> {
        let mut seen = Vec::new();
        for leaders in &mut self.observers {
            seen.push(within(SOON, leaders.next()).await.expect("it goes on"));
        }
        assert_eq!(seen[0], seen[1]);
        seen.swap_remove(0)
    }

    async fn next_value(&mut self) -> Option<String> {
        self.next().await.map(|leader| leader.value)
    }

    /// Both come to see this leader. Each of them may see that nobody leads before, or not.
    async fn see(&mut self, value: &str) {
        for leaders in &mut self.observers {
            let is_meant = |leader: &Option<Leader>| leader.as_ref().is_some_and(|one| one.value == value);
            while !is_meant(&within(SOON, leaders.next()).await.expect("it goes on")) {}
        }
    }

    /// Of all kinds that do not need anybody to die.
    pub async fn sees_every_change(&mut self, store: &str) {
        let [one, two] = self.candidates.clone();
        let mut times = Vec::new();
        for n in 0..5 {
            let value = n.to_string();
            let leadership = within(SOON, one.campaign(&value)).await.expect("nobody leads");
            let begun = Instant::now();
            let seen = self.next().await.expect("a leader");
            assert_eq!((seen.value, seen.token), (value, leadership.token()), "{store}");
            times.push(begun.elapsed());
            leadership.resign().await.expect("it led");
            let begun = Instant::now();
            assert_eq!(self.next().await, None, "{store}");
            times.push(begun.elapsed());
        }
        times.sort();
        println!("{store}: a change is seen {:?} later (median of 10; at most {:?})", times[5], times[9]);

        let first = within(SOON, one.campaign("first")).await.expect("nobody leads");
        assert_eq!(self.next_value().await.as_deref(), Some("first"), "{store}");
        let next = begun(async move { two.campaign("next").await }).await;
        let queue = self.queue.clone();
        eventually(SOON, || async { queue.inspect().await.is_ok_and(|now| now.waiters.len() == 1) }).await;
        first.resign().await.expect("it led");
        let next = within(SOON, next).await.expect("no panic").expect("it leads");
        self.see("next").await;
        assert!(self.queue.force_release().await.expect("answered"), "{store}");
        assert_eq!(self.next().await, None, "{store}: it was forced");
        drop(next);
    }

    /// A change, after the connection through which it would be pushed was cut.
    pub async fn sees_a_change_after(&mut self, mut cut: impl AsyncFnMut()) {
        let [one, _] = self.candidates.clone();
        for n in 0..3 {
            cut().await;
            let value = n.to_string();
            let leadership = within(SOON, one.campaign(&value)).await.expect("nobody leads");
            assert_eq!(self.next_value().await, Some(value));
            cut().await;
            leadership.resign().await.expect("it led");
            assert_eq!(self.next().await, None);
        }
    }

    /// Nobody observes any more: a client without observers, which is still connected.
    pub fn stop(self) -> Client {
        self.client
    }
}
