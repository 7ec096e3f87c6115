//! The channels of the elections that this client observes: subscribed on the connection for notifications, for as long
//! as somebody observes them. A script that changes the holder publishes there (`lua/lock/announced.lua`).

use std::collections::BTreeSet;
use std::future::pending;
use std::str;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::timeout;

use super::keys::changes_channel;
use super::link::{CallError, Link, Message, command};
use super::protocol::CHANGES_PREFIX;
use crate::backend::observed::{Due, Observed};

/// The elections whose channels are subscribed on one link.
#[derive(Default)]
pub(super) struct Elections {
    keys: BTreeSet<Arc<str>>,
    /// What arrives on the link; `None` while there is no election, so that nobody else's messages are read.
    messages: Option<BoxStream<'static, Message>>,
}

impl Elections {
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// What is to be done so that what is observed is subscribed.
    pub(super) fn due(&self, observed: &Observed) -> Due {
        observed.due(&self.keys)
    }

    /// Subscribes the channels of these. Those who observe them are told, because earlier changes were not heard. After
    /// an error, the link must not be used any more.
    pub(super) async fn join(
        &mut self,
        keys: Vec<Arc<str>>,
        observed: &Observed,
        link: &dyn Link,
        time_limit: Duration,
    ) -> Result<(), CallError> {
        if keys.is_empty() {
            return Ok(());
        }
        self.messages.get_or_insert_with(|| link.messages());
        let subscribe = async {
            for key in &keys {
                link.subscribe(&changes_channel(key)).await?;
            }
            processed(link).await
        };
        within(time_limit, subscribe).await?;
        keys.iter().for_each(|key| observed.tell(key));
        self.keys.extend(keys);
        Ok(())
    }

    /// The opposite.
    pub(super) async fn leave(
        &mut self,
        keys: &[Arc<str>],
        link: &dyn Link,
        time_limit: Duration,
    ) -> Result<(), CallError> {
        if keys.is_empty() {
            return Ok(());
        }
        let unsubscribe = async {
            for key in keys {
                link.unsubscribe(&changes_channel(key)).await?;
            }
            processed(link).await
        };
        within(time_limit, unsubscribe).await?;
        self.keys.retain(|key| !keys.contains(key));
        if self.is_empty() {
            self.messages = None;
        }
        Ok(())
    }

    /// Waits for a message, and tells those whom it concerns. Cancel safe.
    pub(super) async fn hear(&mut self, observed: &Observed) {
        let Some(messages) = &mut self.messages else { return pending().await };
        match messages.next().await {
            Some(Message::Text { channel, .. }) => {
                let key =
                    str::from_utf8(&channel).ok().and_then(|channel| channel.strip_prefix(CHANGES_PREFIX));
                key.into_iter().for_each(|key| observed.tell(key));
            }
            Some(Message::Lost(_)) => observed.tell_all(),
            // The link has ended.
            None => self.messages = None,
        }
    }
}

/// Waits until the server has processed what was sent on a link before: not every client library waits for the answer
/// to SUBSCRIBE, but answers arrive in order.
pub(super) async fn processed(link: &dyn Link) -> Result<(), CallError> {
    match command(link, &["PING"]).await {
        // A server that cannot write to its disk answers PING like this.
        Err(error) if error.answers("MISCONF") => Ok(()),
        answer => answer.map(drop),
    }
}

/// As what is done on a link in this time.
pub(super) async fn within(
    time_limit: Duration,
    steps: impl Future<Output = Result<(), CallError>>,
) -> Result<(), CallError> {
    timeout(time_limit, steps).await.unwrap_or_else(|late| Err(CallError::Timeout(late.to_string())))
}
