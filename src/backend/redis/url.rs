//! Parsing URLs, and the address of a server in errors.

use ::fred::types::config::{Config, ServerConfig};

use super::link::Server;
use crate::error::Error;

/// Parses the URL of one server. Errors never repeat the URL, which may contain a password.
pub(super) fn parse(url: &str) -> Result<Config, Error> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::invalid("url", "it has no scheme, such as `redis://`"));
    };
    let config = match scheme {
        "redis" | "valkey" => Config::from_url_centralized(url),
        "redis+unix" => Config::from_url_unix(url),
        "rediss" | "valkeys" => {
            let what = "TLS: this build would connect in plain text";
            return Err(Error::Unsupported { store: format!("{scheme}://"), reason: what.to_owned() });
        }
        "redis-cluster" | "rediss-cluster" | "redis-sentinel" | "rediss-sentinel" => {
            let what = "clusters and sentinels; one server only";
            return Err(Error::Unsupported { store: format!("{scheme}://"), reason: what.to_owned() });
        }
        _ => {
            let why = "its scheme is none of `memory:`, `redis://`, `valkey://`, `redis+unix://`";
            return Err(Error::invalid("url", why));
        }
    };
    if !rest.starts_with("//") {
        return Err(Error::invalid("url", format!("`{scheme}:` is not followed by `//`")));
    }
    let config = config.map_err(|error| Error::invalid("url", error.details().to_owned()))?;
    match &config.server {
        ServerConfig::Centralized { server } if server.host.is_empty() || server.port == 0 => {
            Err(Error::invalid("url", "it names no host, or port 0"))
        }
        ServerConfig::Unix { path } if path.as_os_str().is_empty() || path.ends_with("/") => {
            Err(Error::invalid("url", "it names no socket"))
        }
        _ => Ok(config),
    }
}

/// The server of `config`.
pub(super) fn server(config: &Config) -> Result<Server, Error> {
    match &config.server {
        ServerConfig::Centralized { server } => {
            Ok(Server::Tcp { host: server.host.to_string(), port: server.port })
        }
        ServerConfig::Unix { path } => Ok(Server::Unix(path.clone())),
        _ => Err(one_server_only()),
    }
}

fn one_server_only() -> Error {
    Error::Unsupported {
        store: "redis".to_owned(),
        reason: "clusters and sentinels; one server only".to_owned(),
    }
}

/// The address of the server of `config`, without credentials.
pub(super) fn address(config: &Config) -> Result<String, Error> {
    match &config.server {
        ServerConfig::Centralized { server } => {
            let scheme = if config.uses_tls() { "rediss" } else { "redis" };
            let database = config.database.map(|number| format!("/{number}")).unwrap_or_default();
            Ok(format!("{scheme}://{}:{}{database}", server.host, server.port))
        }
        ServerConfig::Unix { path } => Ok(format!("redis+unix://{}", path.display())),
        _ => Err(one_server_only()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_of(url: &str) -> String {
        address(&parse(url).unwrap()).unwrap()
    }

    #[test]
    fn addresses_leave_out_credentials() {
        assert_eq!(address_of("redis://user:hunter2@db:7000/3"), "redis://db:7000/3");
        assert_eq!(address_of("redis://db"), "redis://db:6379");
        assert_eq!(address_of("redis+unix:///run/redis.sock"), "redis+unix:///run/redis.sock");
        assert_eq!(address_of("redis+unix://u:hunter2@x/run/redis.sock"), "redis+unix:///run/redis.sock");
    }

    #[test]
    fn bad_urls_are_refused_without_repeating_a_password() {
        for url in [
            "",
            "redis",
            "redis:",
            "redis://",
            "redis://:hunter2@",
            "redis://u:hunter2@h:99999",
            "redis://u:hunter2@h/x",
            "redis://u:hunter2@h:0",
            "redis://u:hunter2@h/300",
            "http://u:hunter2@h",
            "redis+unix://",
            "memory",
            "redis+unix:",
        ] {
            let error = parse(url).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
        }
    }

    #[test]
    fn schemes_of_other_topologies_are_told_from_nonsense() {
        for url in ["rediss://h", "redis-cluster://h", "redis-sentinel://h"] {
            assert!(matches!(parse(url).unwrap_err(), Error::Unsupported { .. }), "{url}");
        }
    }
}
