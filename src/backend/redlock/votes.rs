//! What follows from the answers of several nodes. No I/O, no clock.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::backend::{Answer, BackendError, Grant, NodeFailure, Queued, Released, Renewal};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// The usual number of nodes.
pub(super) const USUAL: usize = 5;

/// How many of `nodes` nodes are a majority.
pub(super) const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The answers to a request, by node.
#[derive(Debug)]
pub(super) struct Votes {
    answers: SmallVec<[Option<Result<Answer, BackendError>>; USUAL]>,
}

/// What the nodes have decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// A majority has granted it.
    Granted,
    /// A majority has answered, none has granted it, and it waits.
    Queued,
    /// The same, and it does not wait.
    Busy,
    /// A majority cannot be asked.
    Failed,
}

impl Votes {
    pub(super) fn new(nodes: usize) -> Self {
        Self { answers: (0..nodes).map(|_| None).collect() }
    }

    pub(super) fn cast(&mut self, node: usize, answer: Result<Answer, BackendError>) {
        self.answers[node] = Some(answer);
    }

    /// The decision, as soon as no further answer can change it.
    pub(super) fn decision(&self) -> Option<Decision> {
        let (nodes, quorum) = (self.answers.len(), majority(self.answers.len()));
        let (mut granted, mut queued, mut busy, mut failed) = (0, 0, 0, 0);
        for answer in self.answers.iter().flatten() {
            match answer {
                Ok(Answer::Granted(_)) => granted += 1,
                Ok(Answer::Queued(_)) => queued += 1,
                Ok(Answer::Busy { .. }) => busy += 1,
                Err(_) => failed += 1,
            }
        }
        if granted >= quorum {
            return Some(Decision::Granted);
        }
        if failed > nodes - quorum {
            return Some(Decision::Failed);
        }
        let others_hold = queued + busy + failed > nodes - quorum;
        let decided = others_hold && granted + queued + busy >= quorum;
        decided.then_some(if queued > 0 { Decision::Queued } else { Decision::Busy })
    }

    /// The grants, by node.
    pub(super) fn grants(&self) -> impl Iterator<Item = (usize, Grant)> + Clone {
        self.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            Some(Ok(Answer::Granted(grant))) => Some((node, *grant)),
            _ => None,
        })
    }

    /// The places in the queues, by node.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, Queued)> {
        self.answers.iter().enumerate().filter_map(|(node, answer)| match answer {
            Some(Ok(Answer::Queued(queued))) => Some((node, *queued)),
            _ => None,
        })
    }

    /// The token of the grant: `held`, if a majority answers with an earlier grant and this is its token; otherwise the
    /// one on which a majority agrees, if there is one; otherwise the greatest.
    pub(super) fn token(&self, held: Option<FencingToken>) -> Option<FencingToken> {
        self.common_token(held).or_else(|| self.grants().map(|(_, grant)| grant.token).max())
    }

    /// Whether a majority says which token the grant has.
    pub(super) fn has_token(&self, held: Option<FencingToken>) -> bool {
        self.common_token(held).is_some()
    }

    fn common_token(&self, held: Option<FencingToken>) -> Option<FencingToken> {
        let quorum = majority(self.answers.len());
        let mut tokens = self.grants().map(|(_, grant)| grant.token);
        let earlier = self.grants().filter(|(_, grant)| grant.remaining.is_some()).count();
        if let Some(held) = held
            && earlier >= quorum
            && tokens.clone().any(|token| token == held)
        {
            return Some(held);
        }
        tokens.find(|token| self.grants().filter(|(_, grant)| grant.token == *token).count() >= quorum)
    }

    /// How long a majority still holds the lease, if it was granted before this request; `None` for a full TTL. `spare`
    /// is how much longer than the client's lease those of the nodes are.
    pub(super) fn remaining(&self, spare: Duration) -> Option<Duration> {
        let left = |grant: Grant| grant.remaining.map_or(Duration::MAX, |left| left.saturating_sub(spare));
        let mut left: SmallVec<[_; USUAL]> = self.grants().map(|(_, grant)| left(grant)).collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        left.get(majority(self.answers.len()) - 1).copied().filter(|left| *left < Duration::MAX)
    }

    /// When a majority may be available: the nodes that have granted the request are so already.
    pub(super) fn ask_again_in(&self) -> Option<Duration> {
        let pause = |answer: &Result<Answer, BackendError>| match answer {
            Ok(Answer::Granted(_)) => Some(Duration::ZERO),
            Ok(Answer::Queued(queued)) => queued.ask_again_in,
            _ => None,
        };
        let mut pauses: SmallVec<[_; USUAL]> = self.answers.iter().flatten().filter_map(pause).collect();
        pauses.sort_unstable();
        pauses.get(majority(self.answers.len()) - 1).copied().filter(|pause| !pause.is_zero())
    }

    /// Why the request has failed: what all nodes that failed have in common, or that there is no quorum.
    pub(super) fn error(&mut self, store: impl Fn(usize) -> String) -> BackendError {
        let nodes = self.answers.len();
        let failures = self.answers.iter_mut().enumerate();
        let failures = failures.filter_map(|(node, answer)| Some((node, answer.take()?.err()?)));
        no_quorum(nodes, failures.collect(), store)
    }
}

/// The error of an operation for which too few nodes have answered.
pub(super) fn no_quorum(
    of: usize,
    failures: Vec<(usize, BackendError)>,
    store: impl Fn(usize) -> String,
) -> BackendError {
    let needed = majority(of);
    let lasting = failures.iter().filter(|(_, error)| !error.is_transient()).count();
    let wrong_type =
        failures.iter().filter(|(_, error)| matches!(error, BackendError::WrongType { .. })).count();
    let nodes = failures.into_iter().map(|(node, error)| NodeFailure::new(store(node), error)).collect();
    let error = BackendError::NoQuorum { needed, of, nodes };
    if lasting <= of - needed {
        return error;
    }
    // Retrying does not help.
    let source = error.to_string().into();
    if wrong_type > of - needed {
        BackendError::WrongType { source }
    } else {
        BackendError::Refused { source }
    }
}

/// The answers to a release: how many nodes gave each.
#[derive(Debug, Default)]
pub(super) struct Releases {
    held: usize,
    unknown: usize,
    queued: usize,
    revoked: usize,
    taken: usize,
    absent: usize,
    failed: usize,
}

impl Releases {
    pub(super) fn cast(&mut self, answer: Option<Released>) {
        *match answer {
            Some(Released::Held) => &mut self.held,
            Some(Released::Unknown) => &mut self.unknown,
            Some(Released::Queued) => &mut self.queued,
            Some(Released::Revoked) => &mut self.revoked,
            Some(Released::Taken) => &mut self.taken,
            Some(Released::Absent) => &mut self.absent,
            None => &mut self.failed,
        } += 1;
    }

    /// What a release of a lease on `nodes` nodes has found, once that is certain; `Err` if too few nodes have
    /// answered.
    pub(super) fn found(&self, nodes: usize) -> Option<Result<Released, ()>> {
        let quorum = majority(nodes);
        let Self { held, unknown, queued, revoked, taken, absent, failed } = *self;
        if failed > nodes - quorum {
            return Some(Err(()));
        }
        let gone = revoked + taken + absent;
        let by_majority = [
            (held, Released::Held),
            (queued, Released::Queued),
            // One node that remembers the revocation is enough: the others may not have had the lease.
            (if revoked > 0 { gone } else { 0 }, Released::Revoked),
            (taken, Released::Taken),
            (absent, Released::Absent),
        ];
        if let Some((_, found)) = by_majority.into_iter().find(|(count, _)| *count >= quorum) {
            return Some(Ok(found));
        }
        if held + unknown + queued + gone + failed < nodes {
            return None;
        }
        Some(Ok(if held + unknown + failed >= quorum && held + unknown > 0 {
            Released::Unknown
        } else if revoked > 0 {
            Released::Revoked
        } else if queued > 0 {
            Released::Queued
        } else if taken > 0 {
            Released::Taken
        } else {
            Released::Absent
        }))
    }
}

/// The answers to the renewal of one lease.
#[derive(Debug)]
pub(super) struct Renewals {
    answers: SmallVec<[Option<Result<Renewal, BackendError>>; USUAL]>,
    decided: bool,
}

impl Renewals {
    pub(super) fn new(nodes: usize) -> Self {
        Self { answers: (0..nodes).map(|_| None).collect(), decided: false }
    }

    pub(super) fn cast(&mut self, node: usize, answer: Result<Renewal, BackendError>) {
        self.answers[node].get_or_insert(answer);
    }

    pub(super) fn has_answered(&self, node: usize) -> bool {
        self.answers[node].is_some()
    }

    /// The answer, once: as soon as no further answer can change it.
    pub(super) fn decide(
        &mut self,
        store: impl Fn(usize) -> String,
    ) -> Option<Result<Renewal, BackendError>> {
        if self.decided {
            return None;
        }
        let (nodes, quorum) = (self.answers.len(), majority(self.answers.len()));
        let count = |is: fn(&Result<Renewal, BackendError>) -> bool| {
            self.answers.iter().flatten().filter(|answer| is(answer)).count()
        };
        let renewed = count(|answer| matches!(answer, Ok(Renewal::Renewed)));
        let lost = count(|answer| matches!(answer, Ok(Renewal::Lost(_))));
        let failed = count(Result::is_err);
        let answer = if renewed >= quorum {
            Ok(Renewal::Renewed)
        } else if lost > nodes - quorum {
            Ok(Renewal::Lost(self.reason()?))
        } else if renewed + lost + failed == nodes || failed > nodes - quorum {
            // It may be held on those that have not answered.
            let failures = self.answers.iter().enumerate();
            let failures = failures.filter_map(|(node, answer)| match answer {
                Some(Err(error)) => Some((node, error.clone())),
                _ => None,
            });
            Err(no_quorum(nodes, failures.collect(), store))
        } else {
            return None;
        };
        self.decided = true;
        Some(answer)
    }

    /// Why it was lost: by force or to another client if any node says so, since the nodes that have not answered yet
    /// may say the same, and otherwise what most nodes say.
    fn reason(&self) -> Option<LossReason> {
        use LossReason::{Revoked, Taken};
        let reasons = self.answers.iter().flatten().filter_map(|answer| match answer {
            Ok(Renewal::Lost(reason)) => Some(*reason),
            _ => None,
        });
        let reasons: SmallVec<[_; USUAL]> = reasons.collect();
        let most = |reason: &LossReason| reasons.iter().filter(|other| *other == reason).count();
        let decisive = [Revoked, Taken].into_iter().find(|reason| reasons.contains(reason));
        decisive.or_else(|| reasons.iter().copied().max_by_key(most))
    }

    /// Whether a majority has renewed it.
    pub(super) fn is_renewed(&self) -> bool {
        let renewed = self.answers.iter().flatten().filter(|answer| matches!(answer, Ok(Renewal::Renewed)));
        renewed.count() >= majority(self.answers.len())
    }

    /// The nodes that have nothing under the key.
    pub(super) fn without(&self) -> SmallVec<[usize; USUAL]> {
        let mut without = smallvec![];
        for (node, answer) in self.answers.iter().enumerate() {
            use LossReason::{Expired, Missing, Revoked};
            if matches!(answer, Some(Ok(Renewal::Lost(Expired | Missing | Revoked)))) {
                without.push(node);
            }
        }
        without
    }
}
