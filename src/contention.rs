//! Who holds something that somebody else has waited for in vain.

use std::fmt;
use std::time::Duration;

use crate::backend::{Holder, Inspection, SUMMARY_HOLDERS};

/// How many holders are named in a text.
const NAMED: usize = 3;

/// Who held something, and how many waited for it, shortly before a call gave up waiting: see
/// [`Error::TimedOut`](crate::Error::TimedOut).
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::Error;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let mutex = client.mutex("machine:42")?.with_note("merge");
/// let guard = mutex.lock().await?;
/// match mutex.lock_timeout(Duration::from_millis(150)).await {
///     Err(Error::TimedOut { contention: Some(contention), .. }) => {
///         println!("{contention}"); // such as: held by api-7 (pid 4711) for 12 s, 3 wait
///         assert_eq!(contention.holders[0].note.as_deref(), Some("merge"));
///     }
///     other => panic!("{other:?}"),
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contention {
    /// The holders; several of a semaphore, of which there may be more than the [`SUMMARY_HOLDERS`] that are read.
    pub holders: Vec<Holder>,
    /// How many places there were in the store's queue. The tasks of one client may share one.
    pub waiters: usize,
}

/// For the text.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::Contention;
///
/// let client = leasehold::Client::builder("memory:").label("api-7").connect().await?;
/// let mutex = client.mutex("machine:42")?;
/// let guard = mutex.lock().await?;
/// let text = Contention::from(mutex.inspect().await?).to_string();
/// assert!(text.starts_with("held by api-7 for"), "{text}");
/// # drop(guard);
/// # Ok(()) }
/// ```
impl From<Inspection> for Contention {
    fn from(found: Inspection) -> Self {
        Self { holders: found.holders, waiters: found.waiting }
    }
}

impl Contention {
    /// The same, as much later.
    pub(crate) fn after(mut self, elapsed: Duration) -> Self {
        for held_for in self.holders.iter_mut().filter_map(|holder| holder.held_for.as_mut()) {
            *held_for += elapsed;
        }
        self
    }
}

impl fmt::Display for Contention {
    /// Such as `held by api-7 (pid 4711) for 12 s, 3 wait`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holders, waiters } = self;
        match &holders[..] {
            [] => f.write_str("held by nobody")?,
            some => {
                for (n, holder) in some.iter().take(NAMED).enumerate() {
                    f.write_str(if n == 0 { "held by " } else { ", " })?;
                    write_holder(f, holder)?;
                }
            }
        }
        match holders.len() {
            SUMMARY_HOLDERS.. => f.write_str(" and others")?,
            n if n > NAMED => write!(f, " and {} more", n - NAMED)?,
            _ => {}
        }
        match waiters {
            1 => f.write_str(", 1 waits"),
            waiters => write!(f, ", {waiters} wait"),
        }
    }
}

fn write_holder(f: &mut fmt::Formatter<'_>, holder: &Holder) -> fmt::Result {
    match (&holder.label, holder.short_id()) {
        (Some(label), _) => f.write_str(label)?,
        (None, Some(id)) => write!(f, "lease {id}")?,
        (None, None) => f.write_str("a client of another library")?,
    }
    if let Some(held_for) = holder.held_for {
        let seconds = held_for.as_secs_f64();
        let digits = usize::from(seconds < 10.0);
        write!(f, " for {seconds:.digits$} s")?;
    }
    match &holder.note {
        Some(note) => write!(f, " ({note})"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(label: &str, millis: u64) -> Holder {
        let (label, held_for) = (Some(label.to_owned()), Some(Duration::from_millis(millis)));
        Holder { label, held_for, ..Holder::new("0bd7ff6e-a7e3-11f0-a9dd-0242ac120002.7", None, None) }
    }

    #[test]
    fn a_text_says_who_holds_since_when_and_how_many_wait() {
        let text = |holders: &[&Holder], waiters| {
            let holders = holders.iter().copied().cloned().collect();
            Contention { holders, waiters }.to_string()
        };
        let one = holder("api-7 (pid 4711)", 12_345);
        assert_eq!(text(&[&one], 3), "held by api-7 (pid 4711) for 12 s, 3 wait");
        let brief = Holder { note: Some("nightly report".into()), ..holder("b", 250) };
        assert_eq!(text(&[&brief], 1), "held by b for 0.2 s (nightly report), 1 waits");
        let many = [&one, &brief, &one, &one, &one];
        assert!(text(&many, 0).ends_with("for 12 s and 2 more, 0 wait"), "{}", text(&many, 0));
        let very_many = vec![&one; SUMMARY_HOLDERS];
        assert!(text(&very_many, 0).ends_with("for 12 s and others, 0 wait"), "{}", text(&very_many, 0));
        let nameless = Holder { label: None, held_for: None, ..holder("", 0) };
        assert_eq!(text(&[&nameless], 2), "held by lease 0bd7ff6e….7, 2 wait");
        assert_eq!(
            text(&[&Holder::new("secret", None, None)], 2),
            "held by a client of another library, 2 wait"
        );
        assert_eq!(text(&[], 2), "held by nobody, 2 wait");
    }
}
