//! Arguments of calls and answers of the server, for any client library.

use std::str;

use bytes::Bytes;

/// The keys and the arguments of a script's call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) keys: Vec<Bytes>,
    pub(super) args: Vec<Bytes>,
}

/// An answer of the server, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Nil,
    Integer(i64),
    Text(Bytes),
    List(Vec<Self>),
}

impl Value {
    pub(super) fn as_bytes(&self) -> Option<&[u8]> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        self.as_bytes().and_then(|text| str::from_utf8(text).ok())
    }

    /// A number, also one that is written as a text.
    pub(super) fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => self.as_str()?.parse().ok(),
        }
    }

    pub(super) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(*number).ok(),
            _ => self.as_str()?.parse().ok(),
        }
    }

    /// The items of a list; of anything else, none.
    pub(super) fn as_list(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { &[] }
    }
}
