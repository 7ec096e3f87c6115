//! Options and clients as configuration files have them, in TOML and JSON.
#![cfg(feature = "serde")]

use std::fmt::Debug;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error, MutexOptions, OnOtherLimit, SemaphoreOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

#[path = "../fuzz/configuration.rs"]
mod fuzzed;

/// A client with the options that a file has, which are read as they are with TOML.
fn client(text: &str) -> Client {
    toml::from_str::<ClientBuilder>(text).expect("valid").connect_lazy().expect("in memory")
}

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn every_option_has_the_name_of_its_method() {
    let client = client(
        r#"
        url = "memory:"
        fail_fast = true

        [mutex]
        ttl = "10s"
        renewal_period = "3s"
        max_hold = "1h 30m"
        prefix = "shop:"
        local_handover = false

        [semaphore]
        ttl = "500ms"
        renewal_period = "100ms"
        max_hold = "5m"
        prefix = "limits:"
        local_handover = true
        on_other_limit = "follow"
        "#,
    );
    let mutex = MutexOptions::new()
        .ttl(seconds(10))
        .renewal_period(seconds(3))
        .max_hold(seconds(5400))
        .prefix("shop:")
        .local_handover(false);
    assert_eq!(client.mutex_options(), mutex);
    let semaphore = SemaphoreOptions::new()
        .ttl(Duration::from_millis(500))
        .renewal_period(Duration::from_millis(100))
        .max_hold(seconds(300))
        .prefix("limits:")
        .local_handover(true)
        .on_other_limit(OnOtherLimit::Follow);
    assert_eq!(client.semaphore_options(), semaphore);
}

#[test]
fn what_is_left_out_is_the_default() {
    for text in ["url = 'memory:'", "url = 'memory:'\n[mutex]\n[semaphore]"] {
        let client = client(text);
        assert_eq!(client.mutex_options(), MutexOptions::new());
        assert_eq!(client.semaphore_options(), SemaphoreOptions::new());
    }
    let partly = client("url = 'memory:'\nmutex.prefix = ''\nsemaphore.on_other_limit = 'set'");
    assert_eq!(partly.mutex_options(), MutexOptions::new().prefix(""));
    assert_eq!(partly.semaphore_options(), SemaphoreOptions::new().on_other_limit(OnOtherLimit::Set));
}

#[tokio::test]
async fn a_builder_may_be_a_url_and_works() {
    #[derive(serde::Deserialize)]
    struct Config {
        locks: ClientBuilder,
    }
    for text in ["locks = 'memory:'", "[locks]\nurl = 'memory:'"] {
        let config: Config = toml::from_str(text).expect("valid");
        let client = config.locks.connect().await.expect("in memory");
        client.mutex("a").expect("valid").lock().await.expect("free").release().await.expect("held");
    }
    for fail_fast in [true, false] {
        let builder: ClientBuilder =
            serde_json::from_value(json!({ "url": "memory:", "fail_fast": fail_fast })).expect("valid");
        let set = Client::builder("memory:").fail_fast(fail_fast);
        assert_eq!(format!("{builder:?}"), format!("{set:?}"));
    }
    let json: Config = serde_json::from_value(json!({ "locks": "memory:" })).expect("valid");
    json.locks.connect().await.expect("in memory");
}

fn is_kept<T: Serialize + DeserializeOwned + Debug + PartialEq>(options: T) {
    let text = toml::to_string(&options).expect("it can be written");
    assert_eq!(toml::from_str::<T>(&text).expect("it can be read"), options, "{text}");
    let json = serde_json::to_string(&options).expect("it can be written");
    assert_eq!(serde_json::from_str::<T>(&json).expect("it can be read"), options, "{json}");
}

#[test]
fn options_that_are_written_are_read_as_they_were() {
    let time = Duration::from_micros(90_061_001);
    is_kept(MutexOptions::new());
    is_kept(
        MutexOptions::new()
            .ttl(time)
            .renewal_period(seconds(1))
            .max_hold(time)
            .prefix("a:")
            .local_handover(false),
    );
    is_kept(SemaphoreOptions::new());
    for other_limit in [OnOtherLimit::Refuse, OnOtherLimit::Follow, OnOtherLimit::Set] {
        is_kept(SemaphoreOptions::new().ttl(time).local_handover(true).on_other_limit(other_limit));
    }
    let written = serde_json::to_value(MutexOptions::new().max_hold(seconds(90))).expect("it can be written");
    assert_eq!(written, json!({ "ttl": "30s", "max_hold": "1m 30s", "local_handover": true }));
}

fn refusals(config: &serde_json::Value) -> [String; 2] {
    let json = serde_json::from_value::<ClientBuilder>(config.clone()).map(drop).expect_err("not valid");
    let text = toml::to_string(config).expect("it has no null");
    let toml = toml::from_str::<ClientBuilder>(&text).map(drop).expect_err("not valid");
    [json.to_string(), toml.message().to_owned()]
}

#[test]
fn what_is_wrong_is_said_with_the_name_of_the_option() {
    let mutex = |options| json!({ "url": "memory:", "mutex": options });
    for (config, said) in [
        (json!({}), "missing field `url`"),
        (
            json!({ "url": "memory:", "urll": 1 }),
            "unknown field `urll`, expected one of `url`, `label`, `fail_fast`",
        ),
        (mutex(json!({ "lease": "3s" })), "unknown field `lease`, expected one of `ttl`, `renewal_period`"),
        (mutex(json!({ "on_other_limit": "set" })), "unknown field `on_other_limit`"),
        (mutex(json!({ "ttl": "50ms" })), "invalid ttl: 50ms is not between 100ms and"),
        (
            mutex(json!({ "ttl": "3 fortnights" })),
            "invalid ttl: `3 fortnights` is not a time such as `500ms`",
        ),
        (mutex(json!({ "ttl": "" })), "invalid ttl: `` is not a time"),
        (mutex(json!({ "ttl": "-3s" })), "invalid ttl: `-3s` is not a time"),
        (mutex(json!({ "max_hold": 30 })), "invalid max_hold: 30 has no unit"),
        (mutex(json!({ "max_hold": "1ms" })), "invalid max_hold: 1ms is below 10ms"),
        (
            mutex(json!({ "renewal_period": "30s" })),
            "invalid renewal_period: 30s is not greater than zero and less",
        ),
        (mutex(json!({ "ttl": true })), "expected a time such as `500ms` or `30s`"),
        (
            json!({ "url": "memory:", "semaphore": { "on_other_limit": "ignore" } }),
            "unknown variant `ignore`, expected one of `refuse`, `follow`, `set`",
        ),
    ] {
        for refusal in refusals(&config) {
            assert!(refusal.contains(said), "{config}: {refusal}");
        }
    }
}

#[test]
fn a_password_is_not_repeated() {
    let url = "redis://app:hunter2@h:1";
    for config in [
        json!({ "url": url, "mutex": { "ttl": 3 } }),
        json!({ "url": url, "ttl": "3s" }),
        json!({ "urll": url }),
    ] {
        for refusal in refusals(&config) {
            assert!(!refusal.contains("hunter2"), "{refusal}");
        }
    }
    for config in [json!(url), json!({ "url": url }), json!({ "url": "http://app:hunter2@h" })] {
        let builder: ClientBuilder = serde_json::from_value(config).expect("the URL is not checked yet");
        assert!(!format!("{builder:?}").contains("hunter2"));
        if let Err(error) = builder.connect_lazy() {
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}

/// What `cargo fuzz` begins with, and each beginning of it.
#[test]
fn a_file_may_contain_anything() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/configuration");
    let files: Vec<_> = std::fs::read_dir(corpus).expect("it is there").collect();
    assert!(files.len() >= 5, "{} files", files.len());
    for file in files {
        let bytes = std::fs::read(file.expect("readable").path()).expect("readable");
        (0..=bytes.len()).for_each(|end| fuzzed::configuration(&bytes[..end]));
    }
}
