//! Texts and answers in MessagePack, as the server's `cmsgpack` reads and writes them.

use bytes::Bytes;
use rmp::Marker;
use rmp::decode::{RmpRead, read_marker};

use super::link::Value;

/// More than most answers have.
const USUAL_ITEMS: usize = 256;
/// How deep lists may be nested: as deep as `cmsgpack` packs them.
const DEEPEST: u32 = 16;

pub(super) const FALSE: u8 = 0xc2;
pub(super) const TRUE: u8 = 0xc3;

/// Appends a text with its length.
pub(super) fn pack_text(text: &[u8], packed: &mut Vec<u8>) {
    let (header, length) = header_of_text(text.len());
    // One or two bytes, almost always.
    header[..length].iter().for_each(|byte| packed.push(*byte));
    packed.extend_from_slice(text);
}

/// The header of a text of that many bytes, and the header's length.
fn header_of_text(bytes: usize) -> ([u8; 5], usize) {
    match u8::try_from(bytes) {
        Ok(short @ ..0x20) => ([0xa0 | short, 0, 0, 0, 0], 1),
        Ok(byte) => ([0xd9, byte, 0, 0, 0], 2),
        Err(_) => {
            // The server accepts no longer argument.
            let [a, b, c, d] = u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
            ([0xdb, a, b, c, d], 5)
        }
    }
}

/// Reads a list, whose texts share the memory of `packed`. `None` if it is none.
pub(super) fn unpack_list(packed: &Bytes) -> Option<Vec<Value>> {
    let mut rest = &packed[..];
    match unpack(packed, &mut rest, DEEPEST)? {
        Value::List(items) if rest.is_empty() => Some(items),
        _ => None,
    }
}

/// Reads the value at the start of `rest`, which is the end of `packed`, with lists nested up to `depth`. Fractions are
/// cut off, as in answers without MessagePack.
fn unpack(packed: &Bytes, rest: &mut &[u8], depth: u32) -> Option<Value> {
    let length = match read_marker(rest).ok()? {
        Marker::FixPos(number) => return Some(Value::Integer(number.into())),
        Marker::FixNeg(number) => return Some(Value::Integer(number.into())),
        Marker::U8 => return rest.read_data_u8().ok().map(|number| Value::Integer(number.into())),
        Marker::U16 => return rest.read_data_u16().ok().map(|number| Value::Integer(number.into())),
        Marker::U32 => return rest.read_data_u32().ok().map(|number| Value::Integer(number.into())),
        Marker::U64 => return Some(Value::Integer(rest.read_data_u64().ok()?.try_into().ok()?)),
        Marker::I8 => return rest.read_data_i8().ok().map(|number| Value::Integer(number.into())),
        Marker::I16 => return rest.read_data_i16().ok().map(|number| Value::Integer(number.into())),
        Marker::I32 => return rest.read_data_i32().ok().map(|number| Value::Integer(number.into())),
        Marker::I64 => return rest.read_data_i64().ok().map(Value::Integer),
        Marker::F32 => return rest.read_data_f32().ok().map(|number| Value::Integer(number as i64)),
        Marker::F64 => return rest.read_data_f64().ok().map(|number| Value::Integer(number as i64)),
        Marker::Null | Marker::False => return Some(Value::Nil),
        Marker::True => return Some(Value::Integer(1)),
        Marker::FixArray(length) => return unpack_items(length.into(), packed, rest, depth),
        Marker::Array16 => return unpack_items(rest.read_data_u16().ok()?.into(), packed, rest, depth),
        Marker::Array32 => return unpack_items(rest.read_data_u32().ok()?, packed, rest, depth),
        Marker::FixStr(length) => length.into(),
        Marker::Str8 => rest.read_data_u8().ok()?.into(),
        Marker::Str16 => rest.read_data_u16().ok()?.into(),
        Marker::Str32 => rest.read_data_u32().ok()?,
        _ => return None,
    };
    let start = packed.len() - rest.len();
    let (text, after) = rest.split_at_checked(length as usize)?;
    let text = packed.slice(start..start + text.len());
    *rest = after;
    Some(Value::Text(text))
}

fn unpack_items(length: u32, packed: &Bytes, rest: &mut &[u8], depth: u32) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    // Every item has a byte at least. What is claimed and not there costs no memory.
    let mut items = Vec::with_capacity((length as usize).min(rest.len()).min(USUAL_ITEMS));
    for _ in 0..length {
        items.push(unpack(packed, rest, depth)?);
    }
    Some(Value::List(items))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn list(packed: &[u8]) -> Option<Vec<Value>> {
        unpack_list(&Bytes::copy_from_slice(packed))
    }

    #[test]
    fn numbers_texts_and_lists_are_read() {
        let mut packed = vec![0x98, 0x07, 0xff, 0xcd, 0x01, 0x00, 0xd1, 0xff, 0x00, TRUE, FALSE];
        packed.extend([0xcb]);
        packed.extend(12.75f64.to_be_bytes());
        packed.push(0x92);
        let long = "x".repeat(40);
        pack_text(b"ab", &mut packed);
        pack_text(long.as_bytes(), &mut packed);
        let inner = Value::List(vec![text("ab"), text(&long)]);
        let numbers = [7, -1, 256, -256, 1].map(Value::Integer);
        let expected = numbers.into_iter().chain([Value::Nil, Value::Integer(12), inner]);
        assert_eq!(list(&packed), Some(expected.collect()));
    }

    #[test]
    fn texts_of_any_length_and_content_are_read_back() {
        for length in [0, 31, 32, 255, 256, 70_000] {
            let mut packed = vec![0x91];
            pack_text(&vec![b'x'; length], &mut packed);
            assert_eq!(list(&packed), Some(vec![text(&"x".repeat(length))]), "{length}");
        }
        assert_eq!(list(&[0x91, 0xa1, 0xff]), Some(vec![Value::Text(Bytes::from_static(&[0xff]))]));
    }

    #[test]
    fn truncated_data_and_data_that_is_not_a_list_are_refused() {
        for nonsense in [
            &[][..],
            &[0x01],
            &[0x92, 0x01],
            &[0x91, 0xa2, b'a'],
            &[0x91, 0x01, 0x01],
            &[0xdd, 0xff, 0xff, 0xff, 0xff],
            // It would take all of the stack.
            &[0x91; 100_000],
        ] {
            assert_eq!(list(nonsense), None, "{nonsense:?}");
        }
    }
}
