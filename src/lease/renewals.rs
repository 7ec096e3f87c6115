//! Renewing held leases: many in one request, and not too many at a time.
//!
//! A lease that is being renewed stays filed in the schedule, by its end: a store that hangs delays no deadline.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use scopeguard::guard;
use tokio::time::{Instant, timeout_at};

use super::keeper::Keeper;
use super::lease::{Lease, List};
use super::schedule::TOGETHER;
use crate::backend::{Answered, BackendError};

/// No request is sent while this many renewals are in flight, as many as one request takes, so that a burst of renewals
/// does not hold up other requests at the store. If more of them wait because the store is far away, the limit is one
/// for every [`WAITING_PER_IN_FLIGHT`] that wait, up to [`MAX_IN_FLIGHT`]. This limits the number of round trips by
/// which a renewal can be late.
const IN_FLIGHT: usize = TOGETHER;
const MAX_IN_FLIGHT: usize = 1024;
const WAITING_PER_IN_FLIGHT: usize = 16;

/// Takes out leases to be renewed together, if enough of those `in_flight` have been answered.
pub(super) fn next_together(waiting: &mut VecDeque<Arc<Lease>>, in_flight: usize) -> Option<Vec<Arc<Lease>>> {
    let limit = (waiting.len() / WAITING_PER_IN_FLIGHT).clamp(IN_FLIGHT, MAX_IN_FLIGHT);
    let number = waiting.len().min(TOGETHER);
    (number > 0 && in_flight < limit).then(|| waiting.drain(..number).collect())
}

impl Keeper {
    /// Renews leases, and files them by the answers, each as soon as it is answered. Until then it counts as
    /// `in_flight`.
    pub(super) fn renew<'a>(
        &'a self,
        leases: Vec<Arc<Lease>>,
        in_flight: &'a AtomicUsize,
    ) -> impl Future<Output = ()> + use<'a> {
        // For those that have ended in the meantime, what is due is filed already.
        let sent = Instant::now();
        let requests = leases.into_iter().filter_map(|lease| Some((lease.renewal(sent)?, Some(lease))));
        let (requests, leases): (Vec<_>, Vec<_>) = requests.unzip();
        in_flight.fetch_add(leases.len(), Ordering::Relaxed);
        let ends = leases.iter().flatten().filter_map(|lease| lease.ends()).max();
        // Also if this is dropped: the keeper's tasks may have been started again.
        let mut leases = guard(leases, move |mut leases| {
            let unanswered =
                || Err(BackendError::Unanswered { source: "the store did not answer this renewal".into() });
            let left = leases.iter().enumerate().filter(|(_, lease)| lease.is_some());
            let unanswered: Vec<_> = left.map(|(n, _)| (n, unanswered())).collect();
            self.renewed(&mut leases, unanswered, sent, in_flight);
        });
        async move {
            let answered = async {
                let mut answers = self.backend.renew(&requests).ready_chunks(TOGETHER);
                while let Some(answers) = answers.next().await {
                    self.renewed(&mut leases, answers, sent, in_flight);
                }
            };
            // If the store never answers, the renewals are given up when all these leases have ended: then an error
            // changes nothing.
            let _ = timeout_at(ends.unwrap_or(sent), answered).await;
        }
    }

    /// Handles answers to renewals that were sent at `sent`.
    fn renewed(
        &self,
        leases: &mut [Option<Arc<Lease>>],
        answers: Vec<Answered>,
        sent: Instant,
        in_flight: &AtomicUsize,
    ) {
        let now = Instant::now();
        let renewed = answers.into_iter().filter_map(|(n, answer)| {
            let lease = leases.get_mut(n)?.take()?;
            lease.renewed(answer, sent, now);
            Some(lease)
        });
        let renewed: Vec<_> = renewed.collect();
        in_flight.fetch_sub(renewed.len(), Ordering::Relaxed);
        self.schedule.file(renewed);
        // There may be room for others.
        self.schedule.wake(List::Held);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_more_renewals_wait_the_more_are_in_flight() {
        let lease = Lease::of_mutex(Duration::from_secs(1));
        let next = |waiting: usize, in_flight| {
            let mut all = (0..waiting).map(|_| Arc::clone(&lease)).collect();
            next_together(&mut all, in_flight).map(|leases| (leases.len(), all.len()))
        };
        assert_eq!(next(0, 0), None);
        assert_eq!(next(1, IN_FLIGHT - 1), Some((1, 0)));
        assert_eq!(next(TOGETHER + 1, 0), Some((TOGETHER, 1)));
        assert_eq!(next(1, IN_FLIGHT), None);
        let many = WAITING_PER_IN_FLIGHT * 100;
        assert_eq!((next(many, 99), next(many, 100)), (Some((TOGETHER, many - TOGETHER)), None));
        let most = WAITING_PER_IN_FLIGHT * MAX_IN_FLIGHT * 2;
        assert_eq!((next(most, MAX_IN_FLIGHT - 1).is_some(), next(most, MAX_IN_FLIGHT)), (true, None));
    }
}
