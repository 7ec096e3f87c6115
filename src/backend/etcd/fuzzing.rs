//! What may be stored under the keys of etcd, and what a server may answer.

use std::collections::BTreeSet;

use prost::Message;

use super::keys::{Keys, KeysOf};
use super::leases::Leases;
use super::mail::Mail;
use super::proto::{RangeResponse, TxnResponse};
use super::value::Value;
use super::view::View;
use crate::backend::{Event, Resource, ledger};

fn keys() -> KeysOf {
    Keys::new("leasehold/".to_owned()).of("lock:a")
}

/// Answers to a read and to a transaction, a message of another client, and a hold or a place.
pub(in crate::backend) fn answers(bytes: &[u8]) {
    let keys = keys();
    if let Some(value) = Value::read(bytes) {
        assert_eq!(Value::read(&value.to_text()), Some(value));
    }
    if let Ok(RangeResponse { header, kvs, .. }) = RangeResponse::decode(bytes)
        && let Ok(view) = View::read(&keys, kvs, header.unwrap_or_default().revision)
    {
        viewed(&keys, &view, bytes);
    }
    if let Ok(Ok(Ok(view))) = TxnResponse::decode(bytes).map(|answer| keys.seen(answer)) {
        viewed(&keys, &view, bytes);
    }
    if let Ok(mail) = Mail::decode(bytes) {
        for event in &mail.events {
            drop(event.parse::<Event>());
        }
        if let Some(view) = mail.view(&keys, 7) {
            assert!(!view.is_fresh, "what another client says is compared with what is stored");
            viewed(&keys, &view, bytes);
        }
    }
}

/// What is stored from it is read as it was, and nobody gets what another one holds.
fn viewed(keys: &KeysOf, view: &View, bytes: &[u8]) {
    let stored = view.to_kvs(keys);
    let again = View::read(keys, stored.kvs.clone(), view.revision).expect("it is read again");
    assert_eq!(again.to_kvs(keys), stored);
    if let Ok(ledger) = view.ledger(&Leases::default(), &BTreeSet::new()) {
        for held in ledger.entries() {
            assert!(view.entries.contains_key(&held.lease), "it is not stored");
        }
        ledger::fuzzing::used(ledger, bytes);
    }
}

/// The keys of a resource lead back to it.
pub(in crate::backend) fn keys_of(resource: &Resource) {
    let keys = Keys::new("leasehold/".to_owned());
    let of = keys.of(&resource.key);
    for key in [of.record(), of.limit(), of.lease(-1), of.lease(7)] {
        let found = keys.resource_of(&key).map(|(key, _)| key);
        assert_eq!(found.as_deref(), Some(&*resource.key));
    }
}
