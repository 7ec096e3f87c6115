//! What happened in the operations of a change, for stores in which the record is not all that is stored.

#[cfg(not(feature = "_apart"))]
pub(super) use nothing::Observed;
#[cfg(feature = "_apart")]
pub(super) use observing::Observed;

#[cfg(feature = "_apart")]
mod observing {
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::backend::ledger::Ledger;
    use crate::backend::types::Request;

    /// What has been observed. A record that stays in memory would accumulate requests forever, so they are kept on demand only.
    #[derive(Debug, Default)]
    pub(in crate::backend::ledger) struct Observed {
        is_recording: bool,
        requests: Vec<Request>,
        ends_of_holds: AtomicBool,
        ends_of_all: AtomicBool,
        is_served: bool,
    }

    impl Observed {
        pub(in crate::backend::ledger) fn request(&mut self, request: &Request) {
            if self.is_recording {
                self.requests.push(request.clone());
            }
        }

        /// The queue is served.
        pub(in crate::backend::ledger) const fn serving(&mut self) {
            self.is_served = true;
        }

        /// The answer depends on when holds end.
        pub(in crate::backend::ledger) fn ends_of_holds(&self) {
            self.ends_of_holds.store(true, Ordering::Relaxed);
        }

        /// The answer depends on when holds and places end.
        pub(in crate::backend::ledger) fn ends_of_all(&self) {
            self.ends_of_holds();
            self.ends_of_all.store(true, Ordering::Relaxed);
        }
    }

    /// A copy of a record begins with nothing observed.
    impl Clone for Observed {
        fn clone(&self) -> Self {
            Self::default()
        }
    }

    #[cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "each store uses a part of it"))]
    impl Ledger {
        /// From now on, requests are observed.
        pub(in crate::backend) const fn observe_requests(&mut self) {
            self.observed.is_recording = true;
        }

        /// The requests since then, in order, whether they were granted, queued or refused.
        pub(in crate::backend) fn observed_requests(&self) -> &[Request] {
            &self.observed.requests
        }

        /// Whether an operation served the queue, even if nobody could be served.
        pub(in crate::backend) const fn is_queue_served(&self) -> bool {
            self.observed.is_served
        }

        /// Whether an answer depended on when holds end.
        pub(in crate::backend) fn depends_on_hold_ends(&self) -> bool {
            self.observed.ends_of_holds.load(Ordering::Relaxed)
        }

        /// Whether an answer depended on when every hold and every place ends.
        pub(in crate::backend) fn depends_on_all_ends(&self) -> bool {
            self.observed.ends_of_all.load(Ordering::Relaxed)
        }
    }
}

#[cfg(not(feature = "_apart"))]
mod nothing {
    use crate::backend::types::Request;

    #[derive(Clone, Debug, Default)]
    pub(in crate::backend::ledger) struct Observed {}

    impl Observed {
        pub(in crate::backend::ledger) const fn request(&mut self, _: &Request) {}

        pub(in crate::backend::ledger) const fn serving(&mut self) {}

        pub(in crate::backend::ledger) const fn ends_of_holds(&self) {}

        pub(in crate::backend::ledger) const fn ends_of_all(&self) {}
    }
}
