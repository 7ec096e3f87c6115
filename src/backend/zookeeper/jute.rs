//! The encoding of ZooKeeper's protocol.

use super::failure::Malformed;

/// A message under construction, which begins with its length.
#[derive(Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn new() -> Self {
        Self(vec![0; 4])
    }

    pub(super) fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn bool(&mut self, value: bool) -> &mut Self {
        self.0.push(value.into());
        self
    }

    pub(super) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(length(value.len()));
        self.0.extend_from_slice(value);
        self
    }

    /// The whole message, with its length.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = length(self.0.len() - 4);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// No message is anywhere near this long: see [`MAX_REQUEST`](super::op::MAX_REQUEST).
fn length(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}

/// A message that is being read.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn int(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<i64, Malformed> {
        self.take().map(i64::from_be_bytes)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Malformed> {
        self.take().map(|[byte]| byte != 0)
    }

    /// A length of -1 stands for nothing, which is read as an empty value.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.int()?.max(0)).map_err(|_| Malformed)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn string(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)
    }

    pub(super) fn strings(&mut self) -> Result<Vec<String>, Malformed> {
        let count = self.int()?;
        (0..count).map(|_| self.string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut message = Message::new();
        message.int(-7).long(1 << 40).bool(true).bytes(b"\xffdata").bytes("/a/é".as_bytes()).int(-1);
        let bytes = message.finish();
        let mut reader = Reader(&bytes);
        assert_eq!(reader.int().unwrap() as usize, bytes.len() - 4);
        assert_eq!((reader.int().unwrap(), reader.long().unwrap()), (-7, 1 << 40));
        assert!(reader.bool().unwrap());
        assert_eq!(reader.bytes().unwrap(), b"\xffdata");
        assert_eq!(reader.string().unwrap(), "/a/é");
        assert_eq!(reader.bytes().unwrap(), b"", "nothing");
        assert!(reader.int().is_err(), "there is no more");
    }

    #[test]
    fn truncated_data_and_data_that_is_not_text_are_malformed() {
        for bytes in [&[][..], &[0, 0], &[0, 0, 0, 9, 1], &[0x7f, 0xff, 0xff, 0xff]] {
            assert!(Reader(bytes).bytes().is_err(), "{bytes:?}");
            assert!(Reader(bytes).strings().is_err(), "{bytes:?}");
        }
        assert!(Reader(&[0, 0, 0, 1, 0xff]).string().is_err());
    }
}
