//! Which store is meant, and the client of it.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::{fmt, fs};

use leasehold::{Client, ClientBuilder};
use toml::{Table, Value};

use crate::args::Args;
use crate::exit::{Failure, USAGE};

/// The file that is read if it exists and nothing else names a store.
const FILE: &str = "leasehold.toml";

/// A client of the store that the arguments, the environment or the file name, in this order.
pub(crate) async fn connect(args: &Args) -> Result<Client, Failure> {
    Ok(builder(args)?.connect().await?)
}

/// The same, not yet connected.
pub(crate) fn builder(args: &Args) -> Result<ClientBuilder, Failure> {
    let builder = match (&args.config, &args.url) {
        (Some(path), url) => {
            let mut file = parse(path, &read(path).map_err(|error| invalid(path, error))?)?;
            if let Some(url) = url {
                file.insert("url".to_owned(), url.clone().into());
            }
            of(path, file)?
        }
        // Which directory this is run in shall not decide silently which prefixes are used.
        (None, Some(url)) => Client::builder(url),
        (None, None) => in_this_directory()?,
    };
    Ok(match &args.label {
        Some(label) => builder.label(label),
        None => builder,
    })
}

fn in_this_directory() -> Result<ClientBuilder, Failure> {
    let path = Path::new(FILE);
    match read(path) {
        Ok(text) => of(path, parse(path, &text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let failure = Failure::new(USAGE, "no store is named");
            Err(failure.hint(format!(
                "Set LEASEHOLD_URL, for instance to redis://127.0.0.1:6379, or write a file {FILE}."
            )))
        }
        Err(error) => Err(invalid(path, error)),
    }
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

fn parse(path: &Path, text: &str) -> Result<Table, Failure> {
    text.parse().map_err(|error: toml::de::Error| {
        // Not its `to_string`, which quotes the line: that may have a password.
        let line = error.span().map(|Range { start, .. }| {
            let before = text.as_bytes().iter().take(start).filter(|&&byte| byte == b'\n');
            format!("line {}: ", before.count() + 1)
        });
        invalid(path, format!("{}{}", line.unwrap_or_default(), error.message()))
    })
}

fn of(path: &Path, file: Table) -> Result<ClientBuilder, Failure> {
    let mut values = Vec::new();
    let file = Value::Table(file);
    collect(&file, &mut values);
    serde_path_to_error::deserialize(file).map_err(|error| {
        let field = error.path().to_string();
        let why = without(&values, error.inner().message());
        invalid(path, if field == "." { why } else { format!("`{field}`: {why}") })
    })
}

/// All strings of a file.
fn collect(value: &Value, strings: &mut Vec<String>) {
    match value {
        Value::String(string) => strings.push(string.clone()),
        Value::Array(array) => array.iter().for_each(|value| collect(value, strings)),
        Value::Table(table) => table.values().for_each(|value| collect(value, strings)),
        _ => {}
    }
}

/// A message that may quote a value, without it: a URL may be in the wrong place, with its password.
fn without(values: &[String], message: &str) -> String {
    values.iter().fold(message.to_owned(), |message, value| {
        message.replace(&format!("{value:?}"), "\"…\"").replace(&format!("`{value}`"), "`…`")
    })
}

fn invalid(path: &Path, why: impl fmt::Display) -> Failure {
    Failure::new(USAGE, format!("the configuration {} cannot be used: {why}", path.display()))
}
