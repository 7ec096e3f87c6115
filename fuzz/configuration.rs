//! A configuration file that may be anything: options that were read are read as they were when
//! they are written.

use std::fmt::Debug;

use leasehold::{ClientBuilder, MutexOptions, SemaphoreOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    read_back::<MutexOptions>(text);
    read_back::<SemaphoreOptions>(text);
    if let Ok(builder) = toml::from_str::<ClientBuilder>(text) {
        drop(format!("{builder:?}"));
    }
}

fn read_back<T: Debug + DeserializeOwned + PartialEq + Serialize>(text: &str) {
    let Ok(options) = toml::from_str::<T>(text) else { return };
    let written = toml::to_string(&options).expect("options are written");
    let again: T = toml::from_str(&written).expect("options that were written are read");
    assert_eq!(again, options, "{written}");
}
