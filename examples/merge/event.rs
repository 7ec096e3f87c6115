//! What workers report: on a channel, or as lines of text between processes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use leasehold::FencingToken;

use crate::failure::Failure;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Got the lock: `locked <token> <microseconds waited>`.
    Locked { token: FencingToken, waited: Duration },
    /// An update was written and acknowledged: `made`.
    Made,
    /// Stalled between read and write for good: `stalled <token>`.
    Stalled { token: FencingToken },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked { token, waited } => write!(f, "locked {token} {}", waited.as_micros()),
            Self::Made => f.write_str("made"),
            Self::Stalled { token } => write!(f, "stalled {token}"),
        }
    }
}

impl FromStr for Event {
    type Err = Failure;

    fn from_str(line: &str) -> Result<Self, Failure> {
        let number = |word: &str| word.parse().map_err(|_| Failure::Protocol(line.to_owned()));
        let token = |word| number(word).map(FencingToken::new);
        match *line.split(' ').collect::<Vec<_>>() {
            ["locked", word, waited] => {
                Ok(Self::Locked { token: token(word)?, waited: Duration::from_micros(number(waited)?) })
            }
            ["made"] => Ok(Self::Made),
            ["stalled", word] => Ok(Self::Stalled { token: token(word)? }),
            _ => Err(Failure::Protocol(line.to_owned())),
        }
    }
}
