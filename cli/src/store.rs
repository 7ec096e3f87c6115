//! Which store is meant, and the client of it.

use std::fs;
use std::path::Path;

use leasehold::{Client, ClientBuilder};

use crate::args::Args;
use crate::exit::{Failure, USAGE};

/// The file that is read if it exists.
const FILE: &str = "leasehold.toml";

/// A client of the store that the arguments, the environment or the file name, in this order.
pub(crate) async fn connect(args: &Args) -> Result<Client, Failure> {
    Ok(builder(args)?.connect().await?)
}

/// The same, not yet connected.
pub(crate) fn builder(args: &Args) -> Result<ClientBuilder, Failure> {
    let default = Path::new(FILE);
    let path = args.config.as_deref().or_else(|| default.exists().then_some(default));
    let builder = match (path, &args.url) {
        (Some(path), url) => {
            let mut file = read(path)?;
            if let Some(url) = url {
                file.insert("url".to_owned(), url.clone().into());
            }
            file.try_into().map_err(|error: toml::de::Error| invalid(path, error.message()))?
        }
        (None, Some(url)) => Client::builder(url),
        (None, None) => {
            let failure = Failure::new(USAGE, "no store is named");
            return Err(failure.hint(format!(
                "Set LEASEHOLD_URL, for instance to redis://127.0.0.1:6379, or write a file {FILE}."
            )));
        }
    };
    Ok(match &args.label {
        Some(label) => builder.label(label),
        None => builder,
    })
}

fn read(path: &Path) -> Result<toml::Table, Failure> {
    let text = fs::read_to_string(path).map_err(|error| invalid(path, &error.to_string()))?;
    // Not its `to_string`, which quotes the line: that may have a password.
    text.parse().map_err(|error: toml::de::Error| invalid(path, error.message()))
}

fn invalid(path: &Path, why: &str) -> Failure {
    Failure::new(USAGE, format!("the configuration {} cannot be used: {why}", path.display()))
}
