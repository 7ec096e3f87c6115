//! Which of many faults are needed for a violation.

#![expect(clippy::future_not_send, reason = "one run follows another, on the thread that waits for them")]

use std::ops::AsyncFnMut;

/// The smallest part of `all` that still fails, as far as halves, quarters and so on, and what is left without one of
/// them, can tell: delta debugging (Zeller and Hildebrandt 2002). `all` itself has failed.
///
/// # Errors
///
/// Those of `fails`.
pub async fn smallest<T: Clone, E>(
    all: &[T],
    mut fails: impl AsyncFnMut(&[T]) -> Result<bool, E>,
) -> Result<Vec<T>, E> {
    if all.is_empty() || fails(&[]).await? {
        return Ok(Vec::new());
    }
    let (mut left, mut parts) = (all.to_vec(), 2);
    while left.len() > 1 {
        match smaller(&left, parts, &mut fails).await? {
            Some((found, next)) => (left, parts) = (found, next),
            None if parts >= left.len() => break,
            None => parts = (2 * parts).min(left.len()),
        }
    }
    Ok(left)
}

/// One of the parts, or all but one of them, and in how many parts it is divided next.
async fn smaller<T: Clone, E>(
    left: &[T],
    parts: usize,
    fails: &mut impl AsyncFnMut(&[T]) -> Result<bool, E>,
) -> Result<Option<(Vec<T>, usize)>, E> {
    let size = left.len().div_ceil(parts);
    for part in left.chunks(size) {
        if fails(part).await? {
            return Ok(Some((part.to_vec(), 2)));
        }
    }
    let count = left.len().div_ceil(size);
    // Of two, what is left without one is the other.
    for without in (0..count).filter(|_| count > 2) {
        let rest: Vec<_> = left
            .chunks(size)
            .enumerate()
            .filter(|(n, _)| *n != without)
            .flat_map(|(_, part)| part.to_vec())
            .collect();
        if fails(&rest).await? {
            return Ok(Some((rest, count - 1)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::executor::block_on;

    use super::*;

    /// What is found among so many if all of these are needed, and how many attempts that took.
    fn found(among: u32, needed: &[u32]) -> (Vec<u32>, usize) {
        let all: Vec<_> = (1..=among).collect();
        let mut attempts = 0;
        let fails = async |part: &[u32]| {
            attempts += 1;
            Ok::<_, Infallible>(needed.iter().all(|one| part.contains(one)))
        };
        let Ok(found) = block_on(smallest(&all, fails));
        (found, attempts)
    }

    #[test]
    fn what_is_needed_is_found_and_nothing_else() {
        for needed in [&[1][..], &[64], &[40], &[1, 64], &[3, 4, 5], &[7, 31, 32, 60], &[]] {
            let (found, attempts) = found(64, needed);
            assert_eq!(found, needed, "{attempts} attempts");
        }
        assert_eq!(found(1, &[1]).0, [1]);
        assert_eq!(found(5, &[1, 2, 3, 4, 5]).0, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn one_of_many_takes_few_attempts() {
        let (found, attempts) = found(1024, &[777]);
        assert!(found == [777] && attempts <= 21, "{attempts}");
    }

    #[test]
    fn an_error_ends_it() {
        let found = block_on(smallest(&[1, 2], async |_: &[u32]| Err::<bool, _>("no server")));
        assert_eq!(found, Err("no server"));
    }
}
