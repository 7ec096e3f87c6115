//! Whether a client or a store is closed: every operation checks it, and every long operation also waits for it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::Poll;

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

use crate::sync::AtomicBool;

/// Whether this has been closed. A check costs one atomic load, because every operation checks several times; only a
/// future that has to wait anyway registers for the notification.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    is_closed: AtomicBool,
    closed: CancellationToken,
}

impl Closing {
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.closed.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn closed(&self) -> WaitForCancellationFuture<'_> {
        self.closed.cancelled()
    }

    /// For code that outlives the closed object.
    pub(crate) fn token(&self) -> CancellationToken {
        self.closed.clone()
    }

    /// Runs `work`. `None` if this is closed first; then `work` is no longer polled.
    ///
    /// `work` is pinned by the caller: a future that takes another one by value has room for it twice.
    pub(crate) async fn unless<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut closed = pin!(self.closed());
        poll_fn(|context| {
            if self.is_closed() {
                return Poll::Ready(None);
            }
            match work.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => closed.as_mut().poll(context).map(|()| None),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures::future::join;

    use super::*;

    #[tokio::test]
    async fn work_that_is_done_at_once_is_done_unless_it_is_too_late() {
        let closing = Closing::default();
        assert_eq!(closing.unless(pin!(ready(1))).await, Some(1));
        closing.close();
        assert!(closing.is_closed());
        assert_eq!(closing.unless(pin!(ready(1))).await, None);
    }

    #[tokio::test]
    async fn pending_work_ends_on_close_and_is_no_longer_polled() {
        let (closing, mut polls) = (Closing::default(), 0);
        let work = poll_fn(|_| {
            polls += 1;
            Poll::<()>::Pending
        });
        let (answer, ()) = join(closing.unless(pin!(work)), async { closing.close() }).await;
        assert_eq!((answer, polls), (None, 1));
    }
}
