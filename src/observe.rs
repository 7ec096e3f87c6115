//! Setting the observers of a client.

use std::sync::Arc;

use crate::client::{Client, ClientBuilder};
use crate::observer::Observer;

impl Client {
    /// The same client, watched by this [`Observer`] from now on, and by those that were set before. It applies to all
    /// clones of the client and to what was created from them. It is told of the requests that begin from now on, and
    /// of what becomes of these; of what is held or waits already it is told nothing. It is told the state of the store
    /// at once. [`ClientBuilder::observer`] does the same.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use leasehold::Client;
    /// use leasehold::observer::{Event, Observer};
    ///
    /// /// How many holds there are.
    /// #[derive(Default)]
    /// struct Held(AtomicU64);
    ///
    /// impl Observer for Held {
    ///     fn observe(&self, event: &Event<'_>) {
    ///         match event {
    ///             Event::Acquired { .. } => self.0.fetch_add(1, Ordering::Relaxed),
    ///             Event::Lost { .. } | Event::Released { .. } => self.0.fetch_sub(1, Ordering::Relaxed),
    ///             _ => 0, // events may be added
    ///         };
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let held = Arc::new(Held::default());
    /// let client = Client::memory().with_observer(held.clone());
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// assert_eq!(held.0.load(Ordering::Relaxed), 1);
    /// guard.release().await?;
    /// assert_eq!(held.0.load(Ordering::Relaxed), 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        self.engine.observe(observer);
        self
    }

    pub(crate) fn observed_by(self, observers: Vec<Arc<dyn Observer>>) -> Self {
        observers.into_iter().fold(self, Self::with_observer)
    }
}

impl ClientBuilder {
    /// Has the client watched by this [`Observer`], and by those that were set before.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Client, observer::Event};
    /// let client = Client::builder("memory:")
    ///     .observer(Arc::new(|event: &Event<'_>| println!("{event:?}")))
    ///     .connect_lazy()?;
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }
}
