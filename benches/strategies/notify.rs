//! Notify and retry: the release publishes a message, and every waiter tries again at once.
//!
//! All waiters of a process share one subscription. Messages can be lost, so each also tries again after a while.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fred::clients::SubscriberClient;
use fred::interfaces::{ClientLike, EventInterface, PubsubInterface};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;
use uuid::Uuid;

use crate::common::Result;
use crate::common::polling::Recipe;
use crate::common::turns::Contender;

const COMPARE_DELETE_AND_PUBLISH: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], '')
return 1";
/// How long a waiter relies on being notified.
const FALLBACK: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub(crate) struct Notify {
    recipe: Recipe,
    released: Arc<tokio::sync::Notify>,
    /// Lives as long as there may be waiters.
    _subscriber: SubscriberClient,
}

impl Notify {
    pub(crate) async fn connect(url: &str, key: &str) -> Result<Self> {
        let recipe = Recipe::connect(url, key, COMPARE_DELETE_AND_PUBLISH).await?;
        let subscriber = subscriber(&recipe).await?;
        let released = Arc::new(tokio::sync::Notify::new());
        let (mut messages, tell) = (subscriber.message_rx(), Arc::clone(&released));
        tokio::spawn(async move {
            // fred's own listener would end at the first burst: those left behind are notified as well.
            while let Ok(_) | Err(RecvError::Lagged(_)) = messages.recv().await {
                tell.notify_waiters();
            }
        });
        subscriber.subscribe(key).await?;
        Ok(Self { recipe, released, _subscriber: subscriber })
    }
}

/// A second connection with the same settings.
async fn subscriber(recipe: &Recipe) -> Result<SubscriberClient> {
    let client = &recipe.client;
    let subscriber = SubscriberClient::new(
        client.client_config(),
        Some(client.perf_config()),
        Some((*client.connection_config()).clone()),
        client.client_reconnect_policy(),
    );
    subscriber.init().await?;
    Ok(subscriber)
}

impl Contender for Notify {
    type Held = Uuid;

    async fn acquire(&self, until: Instant) -> Result<Option<Uuid>> {
        while Instant::now() < until {
            // Listens before it looks: a release in between must not be missed.
            let mut released = pin!(self.released.notified());
            released.as_mut().enable();
            if let Some(held) = self.recipe.attempt().await? {
                return Ok(Some(held));
            }
            let fallback = FALLBACK.min(until.saturating_duration_since(Instant::now()));
            // Told or not: the next attempt shows.
            let _ = timeout(fallback, released).await;
        }
        Ok(None)
    }

    async fn release(&self, held: Uuid) -> Result<()> {
        self.recipe.release(held).await
    }
}
