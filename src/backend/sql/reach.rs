//! Reaching a server that can be used: all servers of the list, and all addresses of each, are tried in a race.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use tokio::time::{Instant, timeout_at};

use super::settings::Settings;
use crate::backend::dial;
use crate::backend::records::{Failure, Remedy};

/// One server of the list.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Place {
    /// As it is in errors.
    pub(in crate::backend) name: String,
    pub(in crate::backend) host: Host,
    pub(in crate::backend) port: u16,
}

#[derive(Clone, Debug)]
pub(in crate::backend) enum Host {
    /// To be resolved.
    Name(String),
    Address(IpAddr),
    /// A socket of this machine, which has no address.
    Socket,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// What the first attempt returns that succeeds, until the `end`. Each attempt is for one of the places, by its index,
/// at an address.
#[expect(clippy::future_not_send, reason = "it is if the attempts are")]
pub(in crate::backend) async fn reach<S, T, F>(
    settings: &Settings<S>,
    places: &[Place],
    end: Instant,
    attempt: impl Fn(usize, Option<SocketAddr>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let limit = end.saturating_duration_since(Instant::now());
    let reached = dial::race(0..places.len(), limit, |n| {
        // A bit earlier than the others, to say what was tried.
        let end = Instant::now() + limit - limit / 16;
        reach_one(settings, &places[n], end, {
            let attempt = &attempt;
            move |address| attempt(n, address)
        })
    });
    reached.await.map_err(|failures| {
        // Another server of the list may be well again soon.
        all_failed(settings, places, failures, |failures| {
            failures.iter().all(|failure| failure.remedy == Remedy::Fix)
        })
    })
}

/// The same for one of them.
#[expect(clippy::future_not_send, reason = "it is if the attempts are")]
pub(in crate::backend) async fn reach_one<S, T, F>(
    settings: &Settings<S>,
    place: &Place,
    end: Instant,
    attempt: impl Fn(Option<SocketAddr>) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let addresses = match &place.host {
        Host::Name(host) => {
            let resolved = timeout_at(end, dial::resolve(host, place.port)).await;
            let limit = settings.connect_timeout;
            let late = |_| Failure::unavailable(format!("`{place}` was not resolved within {limit:?}"));
            resolved.map_err(late)?.map_err(|error| Failure::unavailable(error.to_string()))?
        }
        Host::Address(address) => vec![SocketAddr::new(*address, place.port)],
        Host::Socket => return timeout_at(end, attempt(None)).await.unwrap_or_else(|_| Err(settings.late())),
    };
    let left = end.saturating_duration_since(Instant::now());
    let reached = dial::race(addresses.iter().copied(), left, |address| attempt(Some(address))).await;
    reached.map_err(|failures| {
        // Those are the same server, whose word counts.
        all_failed(settings, &addresses, failures, |failures| {
            failures.iter().any(|failure| failure.remedy == Remedy::Fix)
        })
    })
}

/// Why none of several could be used. Whether that `is_final` depends on all.
fn all_failed<S>(
    settings: &Settings<S>,
    names: &[impl fmt::Display],
    failures: Vec<Option<Failure>>,
    is_final: impl Fn(&[Failure]) -> bool,
) -> Failure {
    let mut failures: Vec<_> =
        failures.into_iter().map(|failure| failure.unwrap_or_else(|| settings.late())).collect();
    if failures.len() == 1 {
        return failures.remove(0);
    }
    let each = names.iter().zip(&failures).map(|(name, failure)| format!("{name}: {failure}"));
    let why = each.collect::<Vec<_>>().join("; ");
    if is_final(&failures) {
        Failure::refused(why)
    } else if failures.iter().any(|failure| failure.remedy == Remedy::NotNow) {
        Failure::not_now(why)
    } else {
        Failure::unavailable(why)
    }
}
