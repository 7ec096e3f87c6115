//! Where the record is kept, and how it rejects holders that are too late.
//!
//! A lock alone cannot stop a process that was paused, lost its lease meanwhile, and wakes up just before its
//! write. The resource can, by never going back to an older fencing token. It has to see the token of the *read*
//! too: otherwise a late write could still slip in between the new holder's read and write, and vanish.
//!
//! The record is in the process that you start. Workers in other processes reach it over loopback.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold::{Fence, FencingToken, StaleToken};

use crate::failure::Failure;
use crate::fenced;
use crate::loopback::{Answer, Connection};

/// Cheap to clone; all clones are one record.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    /// In this process.
    Here(Arc<Fenced>),
    /// In the process that serves it.
    At(SocketAddr),
}

/// Check and access are one step, because both happen under the mutex.
#[derive(Debug, Default)]
pub(crate) struct Fenced {
    text: Mutex<String>,
    fence: Fence,
}

impl Storage {
    /// Reads the record, under a token or without any protection.
    pub(crate) async fn read(&self, token: Option<FencingToken>) -> Result<String, Failure> {
        self.access(token, None).await
    }

    /// Writes the record, under a token or without any protection.
    pub(crate) async fn write(&self, token: Option<FencingToken>, text: String) -> Result<(), Failure> {
        self.access(token, Some(text)).await.map(drop)
    }

    async fn access(&self, token: Option<FencingToken>, text: Option<String>) -> Result<String, Failure> {
        let service = match self {
            Self::Here(record) => return Ok(record.access(token, text)?),
            Self::At(service) => *service,
        };
        let request = Request { token, text }.to_string();
        let answer = Connection::open(service).await?.ask(&request).await?;
        let answer = match token {
            Some(token) => fenced::admitted(answer, token)?,
            None => answer,
        };
        Ok(lines(&answer))
    }
}

impl Fenced {
    /// Writes if there is a text, and reads otherwise.
    fn access(&self, token: Option<FencingToken>, text: Option<String>) -> Result<String, StaleToken> {
        let mut kept = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = token {
            self.fence.admit(token)?;
        }
        match text {
            None => Ok(kept.clone()),
            Some(text) => {
                *kept = text;
                Ok(String::new())
            }
        }
    }
}

impl Answer for Fenced {
    async fn answer(&self, request: &str) -> String {
        let Some(Request { token, text }) = Request::read(request) else {
            return format!("what is {request}?");
        };
        match self.access(token, text) {
            Ok(text) => one_line(&text),
            Err(stale) => fenced::refused(stale),
        }
    }
}

/// A line between the processes: the token or `-`, and then the text, if it is a write.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    token: Option<FencingToken>,
    text: Option<String>,
}

impl Request {
    fn read(line: &str) -> Option<Self> {
        let (token, text) = match line.split_once(' ') {
            Some((token, text)) => (token, Some(lines(text))),
            None => (line, None),
        };
        let token = match token {
            "-" => None,
            token => Some(FencingToken::new(token.parse().ok()?)),
        };
        Some(Self { token, text })
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.token {
            Some(token) => write!(f, "{token}")?,
            None => f.write_str("-")?,
        }
        self.text.as_deref().map_or(Ok(()), |text| write!(f, " {}", one_line(text)))
    }
}

/// What separates the lines of a record while it is one line.
const SEPARATOR: &str = "\u{1e}";

fn one_line(text: &str) -> String {
    text.replace('\n', SEPARATOR)
}

fn lines(line: &str) -> String {
    line.replace(SEPARATOR, "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::Service;

    #[test]
    fn requests_are_read_as_they_were_written() {
        for token in [None, Some(FencingToken::new(33))] {
            for text in [None, Some(String::new()), Some("two words\nand a line\n".to_owned())] {
                let request = Request { token, text };
                assert_eq!(Request::read(&request.to_string()), Some(request));
            }
        }
        assert_eq!(Request::read("x"), None);
    }

    #[tokio::test]
    async fn a_record_that_is_served_is_the_one_that_is_here() -> Result<(), Failure> {
        let record = Arc::<Fenced>::default();
        let service = Service::start(Arc::clone(&record)).await?;
        let (here, there) = (Storage::Here(record), Storage::At(service.address()));
        let (old, new) = (Some(FencingToken::new(33)), Some(FencingToken::new(34)));
        there.write(new, "a\nb\n".to_owned()).await?;
        assert_eq!(here.read(None).await?, "a\nb\n");
        assert_eq!(there.read(new).await?, "a\nb\n");
        assert!(matches!(there.read(old).await, Err(Failure::Stale(_))));
        assert!(matches!(here.write(old, String::new()).await, Err(Failure::Stale(_))));
        Ok(())
    }
}
