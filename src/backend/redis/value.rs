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
            // From the bytes: a token comes with every grant.
            Self::Text(digits) if !digits.is_empty() => digits.iter().try_fold(0_u64, |number, digit| {
                number.checked_mul(10)?.checked_add(char::from(*digit).to_digit(10)?.into())
            }),
            _ => None,
        }
    }

    /// The items of a list; of anything else, none.
    pub(super) fn as_list(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_from_its_digits_and_from_nothing_else() {
        let read = |text: &'static str| Value::Text(Bytes::from_static(text.as_bytes())).as_u64();
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("1764090000123456"), Some(1_764_090_000_123_456));
        assert_eq!(read("18446744073709551615"), Some(u64::MAX));
        for text in ["", "18446744073709551616", "-1", "+1", "1.5", "1e3", " 1", "1 ", "é"] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(Value::Integer(7).as_u64(), Some(7));
        assert_eq!((Value::Integer(-7).as_u64(), Value::Nil.as_u64()), (None, None));
    }
}
