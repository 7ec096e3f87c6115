//! I8: a hand-over costs the same for any number of waiters.

use super::{Bounds, Rule, Verdict};
use crate::history::{Cost, History};

pub(super) fn judge(history: &History, bounds: &Bounds, verdict: &mut Verdict) {
    let costs = || history.costs.iter().filter(|cost| cost.hand_overs > 0);
    let by_price = |one: &&Cost, other: &&Cost| {
        let price = |of: &Cost, with: &Cost| u128::from(of.commands) * u128::from(with.hand_overs);
        price(one, other).cmp(&price(other, one))
    };
    let (Some(least), Some(most)) = (costs().min_by(by_price), costs().max_by(by_price)) else { return };
    let bound =
        u128::from(least.commands) * u128::from(most.hand_overs) * u128::from(100 + bounds.cost_percent);
    if u128::from(most.commands) * u128::from(least.hand_overs) * 100 > bound {
        verdict.broken(Rule::I8, history.end, format!("{most:?}, but {least:?}"));
    }
}

#[cfg(test)]
mod tests {
    use crate::history::Cost;
    use crate::judge::Rule::I8;
    use crate::judge::example::Example;

    #[test]
    fn i8_more_waiters_cost_more() {
        let few = Cost { waiters: 10, hand_overs: 100, commands: 200 };
        let mut run = Example::default();
        run.cost(few).cost(Cost { waiters: 1_000, hand_overs: 5_000, commands: 10_500 });
        run.is_fine();
        run.cost(Cost { waiters: 1_000, hand_overs: 5_000, commands: 12_000 });
        run.breaks(I8);
    }
}
