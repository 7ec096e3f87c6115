//! I6: after a run, only fences remain in the store, and what was in use before it is in use after it.

use super::{Bounds, Rule, Verdict};
use crate::history::History;

pub(super) fn judge(history: &History, bounds: &Bounds, verdict: &mut Verdict) {
    let Some((before, after)) = &history.usage else { return };
    if !after.records.is_empty() {
        verdict.broken(Rule::I6, history.end, format!("the store still has {:?}", after.records));
    }
    let counts = [
        ("connections", before.connections, after.connections),
        ("tasks", before.tasks, after.tasks),
        ("descriptors", before.descriptors, after.descriptors),
        ("bytes of memory", before.memory + bounds.memory, after.memory),
    ];
    for (what, most, now) in counts {
        if now > most {
            verdict.broken(Rule::I6, history.end, format!("{now} {what} instead of {most}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::history::Usage;
    use crate::judge::Rule::I6;
    use crate::judge::example::Example;

    #[test]
    fn i6_something_is_left() {
        let clean = Usage { connections: 3, tasks: 4, descriptors: 5, memory: 6, ..Usage::default() };
        let mut run = Example::default();
        run.usage(clean.clone(), Usage { memory: 1_000, ..clean.clone() });
        run.is_fine();
        let left = [
            Usage { records: vec!["lock:a".to_owned()], ..clean.clone() },
            Usage { connections: 4, ..clean.clone() },
            Usage { tasks: 5, ..clean.clone() },
            Usage { descriptors: 6, ..clean.clone() },
            Usage { memory: 1 << 30, ..clean.clone() },
        ];
        for left in left {
            let mut run = Example::default();
            run.usage(clean.clone(), left);
            run.breaks(I6);
        }
    }
}
