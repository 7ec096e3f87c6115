//! Reading the keys of an index in pages.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::BackendError;

/// How many keys a page has at most.
pub(super) const PAGE: usize = 512;

/// The keys that begin with `prefix`. `read` reads the first [`PAGE`] keys of the index that are not less than its
/// argument, in order: so that no upper end is needed, which depends on how texts are compared, it may read beyond the
/// last one.
pub(super) fn pages<'a, R>(
    prefix: &'a str,
    read: impl Fn(String) -> R + Send + 'a,
) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>>
where
    R: Future<Output = Result<Vec<String>, BackendError>> + Send + 'a,
{
    let begin = (prefix.to_owned(), true);
    let pages = stream::try_unfold(Some(begin), move |next| {
        let page = next.map(|(from, is_first)| (read(from.clone()), from, is_first));
        async move {
            let Some((page, from, is_first)) = page else { return Ok(None) };
            let found = page.await?;
            let is_last = found.len() < PAGE || found.last().is_some_and(|last| !last.starts_with(prefix));
            let next = found.last().cloned().filter(|_| !is_last).map(|last| (last, false));
            // The last key of the page before it is read again.
            let keys = found.into_iter().filter(|key| key.starts_with(prefix) && (is_first || *key != from));
            Ok(Some((keys.map(Arc::from).collect(), next)))
        }
    });
    pages.boxed()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::future::ready;

    use futures::TryStreamExt;

    use super::*;

    #[tokio::test]
    async fn every_key_with_the_prefix_is_read_once() {
        for (before, n, behind) in
            [(0, 0, 0), (3, 1, 3), (0, PAGE - 1, 0), (1, PAGE, 0), (1, PAGE, 1), (2, 3 * PAGE, 9)]
        {
            let keys =
                |prefix: &str, n: usize| (0..n).map(|n| format!("{prefix}{n:05}")).collect::<BTreeSet<_>>();
            let mine = keys("b", n);
            let all: BTreeSet<_> =
                [keys("a", before), mine.clone(), keys("c", behind)].into_iter().flatten().collect();
            let read = |from: String| ready(Ok(all.range(from..).take(PAGE).cloned().collect()));
            let found: Vec<Vec<Arc<str>>> = pages("b", read).try_collect().await.unwrap();
            let found: Vec<_> = found.into_iter().flatten().map(|key| key.to_string()).collect();
            assert_eq!(found, mine.into_iter().collect::<Vec<_>>());
        }
    }
}
