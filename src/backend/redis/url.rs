//! Parsing URLs.

use std::path::PathBuf;

use super::target::{Login, Server, Target, Topology};
use crate::backend::by_url::REDIS_SCHEMES;
use crate::backend::url_parts::{Options, UrlOption, decode, invalid};
use crate::error::Error;

/// There are none.
const OPTIONS: &[UrlOption<Target>] = &[];
const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Parses a URL. Errors never repeat it, because it may contain a password.
pub(super) fn parse(url: &str) -> Result<Target, Error> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(invalid("it has no scheme, such as `redis://`"));
    };
    let form =
        Form::of(scheme).ok_or_else(|| invalid(format!("its scheme is not one of {REDIS_SCHEMES}")))?;
    let rest =
        rest.strip_prefix("//").ok_or_else(|| invalid(format!("`{scheme}:` is not followed by `//`")))?;
    if rest.contains('#') {
        return Err(not_encoded('#', "%23"));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if query.contains('@') {
        return Err(not_encoded('?', "%3F"));
    }
    let (authority, path) = match rest.find('/') {
        Some(slash) => (&rest[..slash], Some(&rest[slash + 1..])),
        None => (rest, None),
    };
    // The path of a socket may contain anything, unless that could be the rest of a password.
    let is_only_path = form.kind == Kind::Unix && authority.is_empty();
    if path.is_some_and(|path| path.contains('@')) && !is_only_path {
        return Err(not_encoded('/', "%2F"));
    }
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (credentials, hosts),
        None => ("", authority),
    };
    let mut login = login(credentials)?;
    let topology = match form.kind {
        Kind::Unix => Topology::Single(socket(path)?),
        Kind::Single => {
            login.database = database(path)?;
            let mut servers = servers(hosts, DEFAULT_PORT)?;
            if servers.len() > 1 {
                return Err(invalid(format!("it names several hosts: see the schemes {SEVERAL}")));
            }
            Topology::Single(servers.remove(0))
        }
        Kind::Cluster => {
            if database(path)?.is_some_and(|database| database > 0) {
                return Err(invalid("a cluster only has database 0"));
            }
            Topology::Cluster(servers(hosts, DEFAULT_PORT)?)
        }
        Kind::Sentinel => {
            let (service, path) = match path.unwrap_or_default().split_once('/') {
                Some((service, path)) => (service, Some(path)),
                None => (path.unwrap_or_default(), None),
            };
            if service.is_empty() {
                return Err(invalid("it names no service: `redis-sentinel://HOST:PORT,.../SERVICE`"));
            }
            login.database = database(path)?;
            Topology::Sentinel { sentinels: servers(hosts, SENTINEL_PORT)?, service: decode(service)? }
        }
    };
    // Last: before it is known what the rest of the URL is, this may be a part of a password.
    Options::of(query, OPTIONS)?;
    Ok(Target { topology, login, tls: form.tls })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

/// What a scheme says.
struct Form {
    kind: Kind,
    tls: bool,
}

const SEVERAL: &str = "`redis-sentinel://`, `redis-cluster://` and `redlock://`";

impl Form {
    fn of(scheme: &str) -> Option<Self> {
        let (tls, rest) = [("rediss", true), ("valkeys", true), ("redis", false), ("valkey", false)]
            .into_iter()
            .find_map(|(start, tls)| Some((tls, scheme.strip_prefix(start)?)))?;
        let kind = match rest {
            "" => Kind::Single,
            "-sentinel" => Kind::Sentinel,
            "-cluster" => Kind::Cluster,
            "+unix" if !tls => Kind::Unix,
            _ => return None,
        };
        Some(Self { kind, tls })
    }
}

fn login(credentials: &str) -> Result<Login, Error> {
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (credentials, None),
    };
    if password.is_some_and(|password| password.contains('@')) || user.contains('@') {
        return Err(not_encoded('@', "%40"));
    }
    if password.is_some_and(|password| password.contains(':')) {
        return Err(not_encoded(':', "%3A"));
    }
    let non_empty = |text: &str| (!text.is_empty()).then(|| decode(text)).transpose();
    Ok(Login {
        user: non_empty(user)?,
        password: non_empty(password.unwrap_or_default())?,
        ..Login::default()
    })
}

fn servers(hosts: &str, default_port: u16) -> Result<Vec<Server>, Error> {
    hosts.split(',').map(|host| server(host, default_port)).collect()
}

fn server(text: &str, default_port: u16) -> Result<Server, Error> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| invalid("a `[` is not closed"))?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = match port {
        Some("") => Some(default_port),
        Some(port) => port.parse().ok().filter(|port| *port > 0),
        None => None,
    };
    // This may be a password, so it is not repeated.
    let port = port.ok_or_else(|| invalid("the port of a host is not a number from 1 to 65535"))?;
    if host.is_empty() {
        return Err(invalid("it names no host"));
    }
    Ok(Server::Tcp { host: decode(host)?, port })
}

fn socket(path: Option<&str>) -> Result<Server, Error> {
    match path {
        Some(path) if !path.is_empty() && !path.ends_with('/') => {
            Ok(Server::Unix(PathBuf::from(format!("/{}", decode(path)?))))
        }
        _ => Err(invalid("it names no socket")),
    }
}

fn database(path: Option<&str>) -> Result<Option<u8>, Error> {
    match path {
        None | Some("") => Ok(None),
        Some(path) => {
            path.parse().map(Some).map_err(|_| invalid("the database is not a number from 0 to 255"))
        }
    }
}

fn not_encoded(character: char, code: &str) -> Error {
    invalid(format!(
        "it has a misplaced `{character}`: percent-encode it as `{code}` if it belongs to the user name or the \
         password"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_of(url: &str) -> String {
        parse(url).unwrap().to_string()
    }

    fn tcp(host: &str, port: u16) -> Server {
        Server::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn addresses_leave_out_credentials() {
        assert_eq!(address_of("redis://user:hunter2@db:7000/3"), "redis://db:7000/3");
        assert_eq!(address_of("valkey://db"), "redis://db:6379");
        assert_eq!(address_of("rediss://[::1]:7"), "rediss://[::1]:7");
        assert_eq!(address_of("redis+unix:///run/redis.sock"), "redis+unix:///run/redis.sock");
        assert_eq!(address_of("redis+unix://u:hunter2@x/run/redis.sock"), "redis+unix:///run/redis.sock");
        assert_eq!(address_of("valkeys-cluster://u:hunter2@a,b:1"), "rediss-cluster://a:6379,b:1");
        assert_eq!(address_of("redis-sentinel://:hunter2@a,b:1/s/2"), "redis-sentinel://a:26379,b:1/s/2");
        assert!(!format!("{:?}", parse("redis://user:hunter2@db")).contains("hunter2"));
    }

    #[test]
    fn every_part_is_found_and_decoded() {
        let target = parse("valkeys-sentinel://us%3Aer:p%40ss%2F@a,[::1]:7/main%20one/5").unwrap();
        let sentinels = vec![tcp("a", 26379), tcp("::1", 7)];
        assert_eq!(target.topology, Topology::Sentinel { sentinels, service: "main one".to_owned() });
        assert_eq!(target.login.user.as_deref(), Some("us:er"));
        assert_eq!(target.login.password.as_deref(), Some("p@ss/"));
        assert_eq!((target.login.database, target.tls), (Some(5), true));
        let target = parse("redis+unix://u:p@x/run/a%20b%40c").unwrap();
        assert_eq!(target.topology, Topology::Single(Server::Unix("/run/a b@c".into())));
        assert_eq!(target.login.password.as_deref(), Some("p"));
        assert_eq!(address_of("redis+unix:///run/redis@1.sock"), "redis+unix:///run/redis@1.sock");
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for (url, reason) in [
            ("", "no scheme"),
            ("redis", "no scheme"),
            ("redis:", "not followed by `//`"),
            ("redis+unix:", "not followed by `//`"),
            ("redis://", "no host"),
            ("redis://:hunter2@", "no host"),
            ("redis://u:hunter2@h:99999", "port"),
            ("redis://u:hunter2@h:0", "port"),
            ("redis://u:hunter2@[::1", "not closed"),
            ("redis://u:hunter2@h/x", "database"),
            ("redis://u:hunter2@h/300", "database"),
            ("redis://u:hunter2@a,b", "several hosts"),
            ("redis://u:hunter2@h?protocol=3", "unknown option `protocol`"),
            ("redis-cluster://u:hunter2@h/3", "only has database 0"),
            ("redis-sentinel://u:hunter2@h", "no service"),
            ("http://u:hunter2@h", "scheme is not one of"),
            ("rediss+unix:///x", "scheme is not one of"),
            ("redis+unix://", "no socket"),
            ("redis://u:hunter2#x@h", "percent-encode it as `%23`"),
            ("redis://u:hunter2/x@h", "percent-encode it as `%2F`"),
            ("redis://u:hunter2?x@h", "percent-encode it as `%3F`"),
            ("redis://u:hunter2@x@h", "percent-encode it as `%40`"),
            ("redis://u:p@ss/hunter2@h/0", "percent-encode it as `%2F`"),
            ("redis://u:p@ss?hunter2@h", "percent-encode it as `%3F`"),
            ("redis://hunter2@x:p@h", "percent-encode it as `%40`"),
            ("redis-sentinel://u:p@ss/hunter2@a,b/main", "percent-encode it as `%2F`"),
            ("redis-cluster://u:p@hunter2@a,b", "percent-encode it as `%40`"),
            ("redis+unix://u:p@ss/hunter2@x/run/redis.sock", "percent-encode it as `%2F`"),
            ("redis+unix://u:pass/hunter2@x/run/redis.sock", "percent-encode it as `%2F`"),
            ("redis://u:p?hunter2", "port"),
            ("redis://h?Hunter2hunter2", "unknown option;"),
            ("redis://u:hunter2@h?connect-timeout=3", "unknown option `connect-timeout`"),
            ("redis://u:hunter2:x@h", "percent-encode it as `%3A`"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
            assert!(error.to_string().contains(reason), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
        }
    }
}
