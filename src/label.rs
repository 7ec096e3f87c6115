//! What holders are called at the store, and what their acquisitions are for.

use std::process;
use std::sync::Arc;

use crate::error::Error;

/// The maximum length of the label of a client, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;
/// The maximum length of the note of an acquisition, in bytes.
pub const MAX_NOTE_BYTES: usize = 1024;

/// The label of a client, which is the host name and the process id unless another one is `given`. `None` for no label.
pub(crate) fn label(given: Option<&str>) -> Result<Option<Arc<str>>, Error> {
    let Some(given) = given else { return Ok(Some(default_label())) };
    check("label", given, MAX_LABEL_BYTES)?;
    Ok(text(given))
}

/// Such as `api-7 (pid 4711)`.
pub(crate) fn default_label() -> Arc<str> {
    let host = gethostname::gethostname();
    let host = host.to_string_lossy().replace(char::is_control, "");
    format!("{host} (pid {})", process::id()).into()
}

/// Text that says nothing counts as none.
pub(crate) fn text(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

pub(crate) fn check_note(note: &str) -> Result<(), Error> {
    check("note", note, MAX_NOTE_BYTES)
}

fn check(argument: &'static str, text: &str, limit: usize) -> Result<(), Error> {
    let bytes = text.len();
    if bytes > limit {
        return Err(Error::invalid(
            argument,
            format!("it has {bytes} bytes, more than the limit of {limit}"),
        ));
    }
    if text.contains(char::is_control) {
        return Err(Error::invalid(argument, "it contains a control character, such as a line break"));
    }
    Ok(())
}

/// The note that belongs on the page of every primitive.
macro_rules! with_note {
    ($field:ident) => {
        /// A handle of the same name whose acquisitions carry this note, for people who look at the store: what it is
        /// for, a request id, a user. `inspect` reports it as [`Holder::note`](crate::Holder::note) and
        /// [`Waiter::note`](crate::Waiter::note), beside the [label](crate::ClientBuilder::label) of the client. The
        /// empty note is none.
        ///
        /// An acquisition with a note takes no part in the hand-over among the tasks of one client, because the note at
        /// the store would remain that of the first of them: it always has a lease of its own.
        ///
        /// A note has at most [`MAX_NOTE_BYTES`](crate::MAX_NOTE_BYTES) and no control characters: otherwise, each
        /// acquisition fails with [`Error::InvalidArgument`](crate::Error::InvalidArgument).
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), leasehold::Error> {
        /// let mutex = leasehold::Client::memory().mutex("machine:42")?;
        /// let guard = mutex.with_note("nightly report, run 17").lock().await?;
        /// let holders = mutex.inspect().await?.holders;
        /// assert_eq!(holders[0].note.as_deref(), Some("nightly report, run 17"));
        /// # drop(guard);
        /// # Ok(()) }
        /// ```
        #[must_use]
        pub fn with_note(&self, note: impl Into<String>) -> Self {
            let mut noted = self.clone();
            noted.$field.set_note(&note.into());
            noted
        }
    };
}
pub(crate) use with_note;

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(given: &str) -> String {
        label(Some(given)).unwrap_err().to_string()
    }

    #[test]
    fn a_client_is_called_like_its_host_and_process_unless_it_is_given_a_name() {
        let default = label(None).unwrap().unwrap();
        assert!(default.ends_with(&format!(" (pid {})", process::id())), "{default}");
        assert!(!default.starts_with(' '), "{default}");
        assert_eq!(label(Some("api-7 ü")).unwrap().as_deref(), Some("api-7 ü"));
        assert_eq!(label(Some("")).unwrap(), None);
    }

    #[test]
    fn a_label_that_is_too_long_or_has_control_characters_is_refused() {
        assert!(label(Some(&"l".repeat(MAX_LABEL_BYTES))).is_ok());
        assert!(refusal(&"l".repeat(MAX_LABEL_BYTES + 1)).contains("257 bytes"));
        for text in ["a\nb", "a\0", "\u{1b}[31m", "\u{85}"] {
            assert!(refusal(text).contains("control character"), "{text:?}");
        }
        assert!(check_note(&"n".repeat(MAX_NOTE_BYTES)).is_ok());
        assert!(check_note(&"n".repeat(MAX_NOTE_BYTES + 1)).is_err());
    }
}
