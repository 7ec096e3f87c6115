//! I3: data that checks tokens loses no change and accepts no smaller token.

use std::collections::HashMap;

use super::{Rule, Verdict};
use crate::history::{History, Write};

pub(super) fn judge(history: &History, verdict: &mut Verdict) {
    let mut last: HashMap<u32, &Write> = HashMap::new();
    for write in history.writes.iter().filter(|write| write.is_accepted) {
        let Some(before) = last.insert(write.data, write) else { continue };
        let is_lost = write.read != before.value;
        if !write.is_fenced {
            verdict.lost_changes += usize::from(is_lost);
            continue;
        }
        if is_lost {
            verdict.broken(Rule::I3, write.at, format!("{write:?} loses {before:?}"));
        }
        if write.token < before.token {
            verdict.broken(Rule::I3, write.at, format!("{write:?} is accepted after {before:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::judge::Rule::I3;
    use crate::judge::example::Example;

    #[test]
    fn i3_a_change_is_lost() {
        let mut run = Example::default();
        run.write(true, 100, 0, 1).write(true, 200, 1, 2);
        run.is_fine();
        run.write(true, 300, 1, 2);
        run.breaks(I3);
    }

    #[test]
    fn i3_a_smaller_token_is_accepted() {
        let mut run = Example::default();
        run.write(true, 200, 0, 1).write(true, 100, 1, 2);
        run.breaks(I3);
    }

    #[test]
    fn changes_that_are_lost_without_tokens_are_counted() {
        let mut run = Example::default();
        run.write(false, 200, 0, 1).write(false, 100, 0, 1);
        assert_eq!(run.is_fine().lost_changes, 1);
    }
}
