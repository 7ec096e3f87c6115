//! Reaching a server by whichever of its addresses answers, or a store by whichever of its servers does.
//!
//! One that refuses is passed over at once. One that hangs, or swallows packets, must not cost the whole time limit: the next attempt begins
//! while it is still tried, and the first one that succeeds counts ("Happy Eyeballs", RFC 8305). An attempt should include all that a server
//! that hangs would not do: at least one answer to a request, because the kernel accepts connections for a process that is stopped.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
#[cfg(feature = "_redis")]
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::origin::PerProcess;

/// How long an attempt goes on alone: the "Connection Attempt Delay" that RFC 8305 recommends.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Tries candidates in their order, each with as much of the time limit as is left, and returns the first success. The next attempt begins as
/// soon as all others have failed, or after 250 ms, or after less if there are many candidates: the last one has at least half of the limit.
///
/// # Errors
///
/// Why each of them failed, in their order; `None` for those that had not answered when the time was over.
#[expect(clippy::future_not_send, reason = "it is `Send` if the candidates and the attempts are")]
pub(super) async fn race<C, T, E, F>(
    candidates: impl IntoIterator<Item = C>,
    limit: Duration,
    attempt: impl Fn(C) -> F,
) -> Result<T, Vec<Option<E>>>
where
    F: Future<Output = Result<T, E>>,
{
    let candidates: Vec<_> = candidates.into_iter().collect();
    let count = u32::try_from(candidates.len()).unwrap_or(u32::MAX);
    let delay = ATTEMPT_DELAY.min(limit / count.saturating_mul(2).max(1));
    let end = Instant::now() + limit;
    let mut failures: Vec<Option<E>> = candidates.iter().map(|_| None).collect();
    let (mut waiting, mut attempts) = (candidates.into_iter().enumerate(), FuturesUnordered::new());
    let first = async {
        while let Some((index, candidate)) = waiting.next() {
            attempts.push(attempt(candidate).map(move |result| (index, result)));
            // The last one goes on as long as the limit allows, and so do all others with it.
            let alone_until = if waiting.len() > 0 { Instant::now() + delay } else { end };
            while let Ok(Some((index, result))) = timeout_at(alone_until, attempts.next()).await {
                match result {
                    Ok(success) => return Some(success),
                    Err(failure) => failures[index] = Some(failure),
                }
            }
        }
        None
    };
    let first = first.await;
    first.ok_or(failures)
}

/// A TCP connection to the first address of a host that accepts one. For protocols in which the next step fails soon enough if the server
/// hangs; otherwise [`race`] whole handshakes over the addresses of [`resolve`].
///
/// # Errors
///
/// If the name is not resolved, or no address accepts within the limit; the text names each, and why.
#[cfg(feature = "_redis")]
pub(super) async fn connect(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let end = Instant::now() + limit;
    let late =
        || io::Error::new(io::ErrorKind::TimedOut, format!("`{host}` was not resolved within {limit:?}"));
    let addresses = timeout_at(end, resolve(host, port)).await.map_err(|_| late())??;
    let left = end.saturating_duration_since(Instant::now());
    race(addresses.iter().copied(), left, TcpStream::connect)
        .await
        .map_err(|failures| all_failed(&addresses, failures))
}

#[cfg(feature = "_redis")]
fn all_failed(addresses: &[SocketAddr], mut failures: Vec<Option<io::Error>>) -> io::Error {
    if let [Some(_)] = failures[..] {
        return failures.remove(0).unwrap_or_else(|| io::ErrorKind::TimedOut.into());
    }
    let kind = failures.iter().flatten().last().map_or(io::ErrorKind::TimedOut, io::Error::kind);
    let each = addresses.iter().zip(&failures).map(|(address, failure)| match failure {
        Some(failure) => format!("{address}: {failure}"),
        None => format!("{address}: no answer"),
    });
    io::Error::new(kind, each.collect::<Vec<_>>().join("; "))
}

/// The addresses of a host, in the order in which to try them: as the system sorts them, with the address families alternating (RFC 8305,
/// section 4).
///
/// The system is asked on a thread of its own, because `getaddrinfo` cannot be cancelled and may take many seconds: a runtime that ends
/// waits for its own threads, but not for this one. Callers that ask for the same host at the same time share one thread.
///
/// # Errors
///
/// If the system does not know the host. There is no time limit: see [`race`].
pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = literal.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (answer, answered) = oneshot::channel();
    ask_system(host, answer)?;
    let answer = answered.await.unwrap_or_else(|gone| Err(io::Error::other(gone).to_string()));
    let addresses =
        answer.map_err(|why| io::Error::other(format!("`{host}` could not be resolved: {why}")))?;
    Ok(alternating(&addresses).into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

/// An error as text, because it goes to all who asked.
type Resolved = Result<Vec<IpAddr>, String>;
type Asking = HashMap<String, Vec<oneshot::Sender<Resolved>>>;

/// Who waits for which host.
static ASKING: PerProcess<Asking> = PerProcess::new();

fn ask_system(host: &str, answer: oneshot::Sender<Resolved>) -> io::Result<()> {
    ASKING.with(|hosts| ask_once(hosts, host, answer))
}

fn ask_once(hosts: &mut Asking, host: &str, answer: oneshot::Sender<Resolved>) -> io::Result<()> {
    if let Some(waiting) = hosts.get_mut(host) {
        // Those that have given up need not be kept until the system answers.
        waiting.retain(|answer| !answer.is_closed());
        waiting.push(answer);
        return Ok(());
    }
    let name = host.to_owned();
    thread::Builder::new().name("leasehold-resolve".to_owned()).spawn(move || {
        let resolved = (name.as_str(), 0).to_socket_addrs();
        let resolved = resolved.map(|found| found.map(|address| address.ip()).collect::<Vec<_>>());
        let resolved = match resolved {
            Ok(addresses) if addresses.is_empty() => Err("it has no address".to_owned()),
            resolved => resolved.map_err(|error| error.to_string()),
        };
        let waiting = ASKING.with(|hosts| hosts.remove(&name));
        for answer in waiting.into_iter().flatten() {
            // Whoever asked may be gone.
            drop(answer.send(resolved.clone()));
        }
    })?;
    hosts.insert(host.to_owned(), vec![answer]);
    Ok(())
}

/// The families alternate, beginning with that of the first address; otherwise the order stays the same. Each address is there once.
fn alternating(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut seen = Vec::with_capacity(addresses.len());
    for address in addresses {
        if !seen.contains(address) {
            seen.push(*address);
        }
    }
    let Some(first) = seen.first().map(IpAddr::is_ipv6) else { return seen };
    let (same, other): (Vec<_>, Vec<_>) = seen.into_iter().partition(|address| address.is_ipv6() == first);
    let mut sorted = Vec::with_capacity(same.len() + other.len());
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    loop {
        let pair = (same.next(), other.next());
        if pair == (None, None) {
            return sorted;
        }
        sorted.extend(pair.0);
        sorted.extend(pair.1);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(2);

    /// What one candidate does: answers after some time, refuses, or hangs.
    #[derive(Clone, Copy)]
    enum Server {
        Answers(u64),
        Refuses,
        Hangs,
    }

    async fn call((name, server): (usize, Server)) -> Result<usize, &'static str> {
        match server {
            Server::Answers(millis) => {
                sleep(Duration::from_millis(millis)).await;
                Ok(name)
            }
            Server::Refuses => ready(Err("refused")).await,
            Server::Hangs => pending().await,
        }
    }

    async fn first(servers: &[Server], limit: Duration) -> (Result<usize, Vec<Option<&'static str>>>, u128) {
        let begin = Instant::now();
        let first = race(servers.iter().copied().enumerate(), limit, call).await;
        (first, begin.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_costs_a_share_of_the_limit_wherever_it_stands() {
        use Server::{Answers, Hangs, Refuses};
        for (servers, limit, wins, after) in [
            (vec![Answers(10)], LIMIT, 0, 10),
            (vec![Refuses, Answers(10)], LIMIT, 1, 10),
            (vec![Hangs, Answers(10)], LIMIT, 1, 260),
            (vec![Answers(300), Answers(10)], LIMIT, 1, 260),
            (vec![Hangs, Refuses, Answers(10)], LIMIT, 2, 510),
            (vec![Hangs, Hangs, Hangs, Hangs, Hangs, Answers(10)], LIMIT, 5, 843),
            (vec![Hangs, Answers(10)], Duration::from_millis(80), 1, 30),
        ] {
            let (first, elapsed) = first(&servers, limit).await;
            assert_eq!(first, Ok(wins));
            assert!(elapsed.abs_diff(after) <= 8, "{elapsed} ms instead of {after}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_returned_in_order_and_at_the_end_of_the_limit() {
        let (outcome, elapsed) = first(&[Server::Hangs, Server::Refuses], LIMIT).await;
        assert_eq!((outcome, elapsed), (Err(vec![None, Some("refused")]), 2000));
        let (outcome, elapsed) = first(&[Server::Refuses, Server::Refuses], LIMIT).await;
        assert_eq!((outcome, elapsed), (Err(vec![Some("refused"); 2]), 0));
        assert_eq!(first(&[], LIMIT).await, (Err(Vec::new()), 0));
    }

    #[test]
    fn families_alternate_and_begin_with_that_of_the_first_address() {
        let parse =
            |text: &str| -> Vec<IpAddr> { text.split(' ').map(|text| text.parse().unwrap()).collect() };
        for (from, to) in [
            ("::1 ::2 10.0.0.1 10.0.0.2 10.0.0.3", "::1 10.0.0.1 ::2 10.0.0.2 10.0.0.3"),
            ("10.0.0.1 10.0.0.1 ::1", "10.0.0.1 ::1"),
            ("10.0.0.2 10.0.0.1", "10.0.0.2 10.0.0.1"),
        ] {
            assert_eq!(alternating(&parse(from)), parse(to));
        }
    }

    #[tokio::test]
    async fn addresses_need_no_resolution_and_an_unknown_host_is_named() {
        assert_eq!(resolve("[::1]", 7).await.unwrap(), ["[::1]:7".parse().unwrap()]);
        assert_eq!(resolve("127.0.0.9", 7).await.unwrap(), ["127.0.0.9:7".parse().unwrap()]);
        let error = resolve("no such host", 7).await.unwrap_err().to_string();
        assert!(error.contains("`no such host` could not be resolved"), "{error}");
    }
}
