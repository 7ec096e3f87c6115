//! The transactions on one resource.

use super::keys::KeysOf;
use super::proto::{
    Compare, CompareResult, CompareTarget, CompareWith, DeleteRangeRequest, PutRequest, Request, RequestOp,
    Response, ResponseOp, TxnRequest, TxnResponse,
};
use super::view::{Stored, View};
use crate::backend::BackendError;
use crate::backend::records::Failure;

/// How many comparisons and operations a transaction has at most beside those of the record: etcd allows 128 of each,
/// unless it is told otherwise.
pub(super) const MOST: usize = 96;

impl KeysOf {
    /// The record was last written at this revision; 0 if it does not exist.
    pub(super) fn is_of(&self, mod_revision: i64) -> Compare {
        let with = CompareWith::ModRevision(mod_revision);
        compare(CompareResult::Equal, CompareTarget::Mod, self.record(), with)
    }

    /// The record has this text. As every grant changes it, it then says of all grants the same as it did when it was
    /// read.
    pub(super) fn is_text(&self, text: &str) -> Compare {
        let with = CompareWith::Value(text.as_bytes().to_vec());
        compare(CompareResult::Equal, CompareTarget::Value, self.record(), with)
    }

    /// What keeps the limit in force is there.
    pub(super) fn has_limit(&self) -> Compare {
        let with = CompareWith::CreateRevision(0);
        compare(CompareResult::Greater, CompareTarget::Create, self.limit(), with)
    }

    /// There is no such key.
    pub(super) fn is_new(key: Vec<u8>) -> Compare {
        let with = CompareWith::ModRevision(0);
        compare(CompareResult::Equal, CompareTarget::Mod, key, with)
    }

    /// This hold or place was made at this revision; 0 if it does not exist.
    pub(super) fn is_made_at(&self, etcd_lease: i64, revision: i64) -> Compare {
        let with = CompareWith::CreateRevision(revision);
        compare(CompareResult::Equal, CompareTarget::Create, self.lease(etcd_lease), with)
    }

    /// No hold or place was made after this revision.
    pub(super) fn has_none_after(&self, revision: i64) -> Compare {
        let (key, range_end) = self.leases();
        let with = CompareWith::CreateRevision(revision + 1);
        Compare { range_end, ..compare(CompareResult::Less, CompareTarget::Create, key, with) }
    }

    /// Makes a place, unless there is one, or a hold: an earlier attempt may have been carried out. It replaces what is
    /// left of a hold of the same lease that was ended by force: once the place is over, nothing is to be left.
    pub(super) fn join(&self, value: Vec<u8>, etcd_lease: i64, replaced: Option<&Stored>) -> RequestOp {
        let place = put(self.lease(etcd_lease), value, etcd_lease);
        let replaced = replaced.map(|stored| delete(self.lease(stored.etcd_lease)));
        let join = TxnRequest {
            compare: vec![self.is_made_at(etcd_lease, 0)],
            success: replaced.into_iter().chain([place]).collect(),
            failure: Vec::new(),
        };
        RequestOp { request: Some(Request::Txn(join)) }
    }

    pub(super) fn look(&self) -> RequestOp {
        RequestOp { request: Some(Request::Range(self.read())) }
    }

    /// What a transaction has seen that ended with looking.
    pub(super) fn seen(&self, answer: TxnResponse) -> Result<Result<View, BackendError>, Failure> {
        let revision = revision_of(&answer)?;
        let looked = answer.responses.into_iter().next_back().and_then(|last| last.response);
        let Some(Response::Range(range)) = looked else { return Err(nonsense()) };
        Ok(View::read(self, range.kvs, revision))
    }
}

/// Reads several resources at one revision.
pub(super) fn look_at<'a>(keys: impl Iterator<Item = &'a KeysOf>) -> TxnRequest {
    TxnRequest { success: keys.map(KeysOf::look).collect(), ..TxnRequest::default() }
}

pub(super) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    RequestOp { request: Some(Request::Put(PutRequest { key, value, lease })) }
}

pub(super) fn delete(key: Vec<u8>) -> RequestOp {
    let range_end = Vec::new();
    RequestOp { request: Some(Request::Delete(DeleteRangeRequest { key, range_end })) }
}

pub(super) fn revision_of(answer: &TxnResponse) -> Result<i64, Failure> {
    answer.header.map(|header| header.revision).ok_or_else(nonsense)
}

/// What was read in each operation.
pub(super) fn ranges(
    responses: Vec<ResponseOp>,
) -> impl Iterator<Item = Result<Vec<super::proto::KeyValue>, Failure>> {
    responses.into_iter().map(|response| match response.response {
        Some(Response::Range(range)) => Ok(range.kvs),
        _ => Err(nonsense()),
    })
}

fn compare(result: CompareResult, target: CompareTarget, key: Vec<u8>, with: CompareWith) -> Compare {
    let (result, target) = (result.into(), target.into());
    Compare { result, target, key, with: Some(with), range_end: Vec::new() }
}

fn nonsense() -> Failure {
    Failure { is_certain: false, ..Failure::unavailable("the answer does not match the request") }
}
