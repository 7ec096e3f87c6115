//! Pictures of a run: a minute as a whole, and a few leases of it for one lock, with a lane for each client.

use std::collections::BTreeMap;
use std::ops::Range;

use super::moments::{About, is_in, site_of};
use super::svg::{Area, Picture};
use crate::history::{Effect, Fault, History, Micros, Operation};
use crate::judge::Verdict;

/// What pictures show.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// What happened.
    pub history: &'a History,
    /// What was found.
    pub verdict: &'a Verdict,
    /// When the run began: times are counted from there.
    pub began: Micros,
    /// Which client a fault concerns alone, by the time at which it began.
    pub concerned: &'a BTreeMap<Micros, u32>,
}

const WIDTH: f64 = 1_100.0;
/// Where lanes begin: their names are before.
const LEFT: f64 = 76.0;
const RIGHT: f64 = 12.0;
/// Where the names of faults are.
const TOP: f64 = 34.0;
const ROW: f64 = 11.0;
const BAR: f64 = 9.0;
/// Under the bars of a lane, the line of those who wait.
const WAITING: f64 = 6.0;
const BETWEEN: f64 = 7.0;
/// Under the lanes, the times.
const AXIS: f64 = 22.0;
/// So many bars can be told from each other; where there are more, those that are close to each other become one.
const BARS: usize = 200;

/// Where moments are.
#[derive(Clone, Debug)]
struct Scale {
    shown: Range<Micros>,
    began: Micros,
}

impl Scale {
    fn x(&self, at: Micros) -> f64 {
        let at = at.clamp(self.shown.start, self.shown.end);
        let all = (self.shown.end - self.shown.start).max(1) as f64;
        LEFT + (at - self.shown.start) as f64 / all * (WIDTH - LEFT - RIGHT)
    }

    fn area(&self, from: Micros, to: Micros, y: f64, height: f64) -> Area {
        let x = self.x(from);
        // What takes no time is seen all the same.
        Area { x, y, width: (self.x(to) - x).max(1.0), height }
    }

    fn shows(&self, from: Micros, to: Micros) -> bool {
        from < self.shown.end && to >= self.shown.start
    }

    fn time(&self, at: Micros) -> String {
        seconds(at, self.began)
    }

    fn axis(&self, picture: &mut Picture, top: f64) {
        let length = (self.shown.end - self.shown.start) as f64 / 1e6;
        let step = [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 10.0]
            .into_iter()
            .find(|step| length / step <= 13.0)
            .unwrap_or(60.0);
        let first = (self.shown.start.saturating_sub(self.began) as f64 / 1e6 / step).ceil() as u64;
        let decimals = if step < 0.01 {
            3
        } else if step < 1.0 {
            2
        } else {
            0
        };
        let y = picture.height;
        for n in first.. {
            let at = self.began + (n as f64 * step * 1e6) as Micros;
            if at > self.shown.end {
                break;
            }
            let x = self.x(at);
            picture.path("grid", &format!("M{x:.1} {top:.1}V{y:.1}"), "");
            picture.words("small", (x, y + 14.0), "middle", format!("{:.decimals$} s", n as f64 * step));
        }
        picture.height += AXIS;
    }
}

/// A moment, in seconds since the beginning of the run.
#[must_use]
pub fn seconds(at: Micros, began: Micros) -> String {
    let sign = if at < began { "-" } else { "" };
    format!("{sign}{:.3} s", at.abs_diff(began) as f64 / 1e6)
}

impl Scene<'_> {
    const fn scale(&self, shown: Range<Micros>) -> Scale {
        Scale { shown, began: self.began }
    }

    /// What went wrong then, apart from what nobody caused.
    fn faults(&self, scale: &Scale) -> impl Iterator<Item = &Fault> {
        let shown = scale.clone();
        let faults = self.history.faults.iter();
        faults.filter(move |fault| !is_stall(fault) && shown.shows(fault.began, fault.ended))
    }

    /// A minute, or less: how much was granted, what went wrong, and what followed.
    #[must_use]
    pub fn overview(&self, minute: &Range<Micros>) -> String {
        const GRANTS: f64 = 60.0;
        const MARKS: [f64; 3] = [22.0, 40.0, 58.0];
        let scale = self.scale(minute.clone());
        let mut picture = Picture::new(WIDTH);
        let bottom = 74.0 + GRANTS;
        for fault in self.faults(&scale) {
            let area = scale.area(fault.began, fault.ended, 8.0, bottom - 8.0);
            picture.rectangle(class_of(fault), area, &self.about(fault));
        }
        let lost = self.history.operations.iter().filter_map(|operation| operation.lost);
        let refused = self.history.writes.iter().filter(|write| !write.is_accepted).map(|write| write.at);
        let violated = self.verdict.violations.iter().map(|violation| violation.at);
        marks(&mut picture, &scale, ("losses", "lost", MARKS[0]), lost);
        marks(&mut picture, &scale, ("refused", "refused", MARKS[1]), refused);
        marks(&mut picture, &scale, ("violations", "violation", MARKS[2]), violated);
        let grants = self.history.operations.iter().filter_map(Operation::granted).map(|(at, _)| at);
        let grants = counts(&scale, grants);
        let most = grants.values().copied().max().unwrap_or(1);
        for (n, count) in &grants {
            let (from, to) = bucket(&scale, *n);
            let height = GRANTS * *count as f64 / most as f64;
            let title = format!("{count} grants, from {} to {}", scale.time(from), scale.time(to));
            picture.rectangle("grants", scale.area(from, to, bottom - height, height), &title);
        }
        picture.words("label", (LEFT - 8.0, bottom - GRANTS / 2.0), "end", "grants");
        picture.height = bottom;
        scale.axis(&mut picture, 8.0);
        picture.finish("Grants, faults, losses and refused writes over a minute")
    }

    /// A few leases of one lock or semaphore.
    #[must_use]
    pub fn close_up(&self, site: usize, shown: &Range<Micros>) -> String {
        let scale = self.scale(shown.clone());
        let of_site = self.history.operations.iter().filter(|operation| operation.request.site == site);
        let operations: Vec<_> = of_site.filter(|operation| is_in(operation, shown)).collect();
        let lanes = self.lanes(&operations, &scale);
        let mut picture = Picture::new(WIDTH);
        picture.height = TOP + lanes.iter().map(|lane| lane.height() + BETWEEN).sum::<f64>();
        self.bands(&mut picture, &lanes, &scale);
        scale.axis(&mut picture, TOP - 4.0);
        for lane in &lanes {
            self.lane(&mut picture, lane, &scale);
        }
        self.refusals(&mut picture, site, &lanes, &scale);
        self.violations(&mut picture, site, &scale);
        picture.finish(&format!("Who waited for {} and who held it", self.history.sites[site].name))
    }

    fn lanes<'a>(&self, operations: &[&'a Operation], scale: &Scale) -> Vec<Lane<'a>> {
        let mut by_client: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
        for operation in operations {
            by_client.entry(operation.request.client).or_default().push(operation);
        }
        let ends = self.deaths();
        // So that lanes are as even as possible.
        let mut gap = 0.5;
        loop {
            let mut y = TOP;
            let lanes: Vec<_> = by_client
                .iter()
                .map(|(client, operations)| {
                    let died = ends.get(client).copied().unwrap_or(self.history.end);
                    let lane = Lane::of(*client, operations, died, scale, gap, y);
                    y += lane.height() + BETWEEN;
                    lane
                })
                .collect();
            if lanes.iter().map(|lane| lane.bars.len()).sum::<usize>() <= BARS || gap > WIDTH {
                return lanes;
            }
            gap *= 2.0;
        }
    }

    fn deaths(&self) -> BTreeMap<u32, Micros> {
        let deaths = self.history.faults.iter().filter_map(|fault| match fault.effect {
            Effect::Kills { client } => Some((client, fault.began)),
            _ => None,
        });
        deaths.collect()
    }

    /// Over all lanes, or over that of the client that is concerned.
    fn bands(&self, picture: &mut Picture, lanes: &[Lane<'_>], scale: &Scale) {
        let bottom = picture.height;
        let mut free = [LEFT - 60.0; 2];
        let shown = self.history.faults.iter().filter(|fault| scale.shows(fault.began, fault.ended));
        for fault in shown.filter(|fault| !self.is_part(fault)) {
            let client = self.client_of(fault);
            let lane = lanes.iter().find(|lane| Some(lane.client) == client);
            let (y, height) = match (lane, client) {
                (Some(lane), _) => (lane.y - BETWEEN / 2.0, lane.height() + BETWEEN),
                // It concerns another one.
                (None, Some(_)) => continue,
                (None, None) => (TOP - 4.0, bottom - TOP + 4.0),
            };
            let area = scale.area(fault.began, fault.ended, y, height);
            picture.rectangle(class_of(fault), area, &self.about(fault));
            if is_stall(fault) {
                continue;
            }
            // Two lines of names, and none over another one.
            let words = self.named(fault);
            let width = words.chars().count() as f64 * 5.6;
            let x = area.x.min(WIDTH - RIGHT - width).max(LEFT);
            if let Some(line) = free.iter().position(|end| *end < x) {
                free[line] = x + width;
                picture.words("small fault", (x, 12.0 + 13.0 * line as f64), "start", words);
            }
        }
    }

    /// Whether it is what a client notices of having been stopped.
    fn is_part(&self, stall: &Fault) -> bool {
        let Effect::Stalls { client } = stall.effect else { return false };
        self.history.faults.iter().any(|fault| {
            fault.effect == Effect::Pauses { client }
                && fault.began <= stall.ended
                && stall.began <= fault.ended
        })
    }

    fn lane(&self, picture: &mut Picture, lane: &Lane<'_>, scale: &Scale) {
        let middle = lane.y + lane.height() / 2.0 + 3.0;
        picture.words("label", (LEFT - 8.0, middle), "end", format!("client {}", lane.client));
        let y = lane.y + lane.height() - 2.0;
        picture.path("waits", &waits(lane, scale, y), "");
        for bar in &lane.bars {
            let area = scale.area(bar.from, bar.to, lane.y + bar.row as f64 * ROW, BAR);
            picture.rectangle(
                if bar.holds.len() > 1 { "held many" } else { "held" },
                area,
                &bar.title(scale),
            );
            let [hold] = bar.holds[..] else { continue };
            if let Some(until) = hold.until.filter(|until| *until < bar.to && *until > bar.from) {
                let title = format!("its lease had ended at {}", scale.time(until));
                picture.rectangle("ended", scale.area(until, bar.to, area.y, BAR), &title);
            }
            if let Some(lost) = hold.lost.filter(|lost| *lost <= bar.to && scale.shows(*lost, *lost)) {
                let (x, y) = (scale.x(lost), area.y);
                let title = format!("client {} is told of its loss at {}", lane.client, scale.time(lost));
                picture.path("lost", &format!("M{:.1} {:.1}h10l-5 9z", x - 5.0, y), &title);
            }
        }
    }

    fn refusals(&self, picture: &mut Picture, site: usize, lanes: &[Lane<'_>], scale: &Scale) {
        let refused = self.history.writes.iter().filter(|write| !write.is_accepted);
        let here = refused.filter(|write| site_of(self.history, write) == Some(site));
        for write in here.filter(|write| scale.shows(write.at, write.at)) {
            let lane = lanes.iter().find(|lane| lane.has(write.token));
            let y = lane.map_or(TOP - 8.0, |lane| lane.y + lane.height() - 2.0);
            let title = format!("a write under token {} is refused at {}", write.token, scale.time(write.at));
            picture.path(
                "refused",
                &format!("M{:.1} {:.1}l5 6l-5 6l-5 -6z", scale.x(write.at), y - 6.0),
                &title,
            );
        }
    }

    fn violations(&self, picture: &mut Picture, site: usize, scale: &Scale) {
        let about = About::of(self.history);
        let here = self.verdict.violations.iter().filter(|violation| {
            about.site(self.history, violation) == Some(site) && scale.shows(violation.at, violation.at)
        });
        let bottom = picture.height - AXIS;
        for violation in here {
            let x = scale.x(violation.at);
            let title = format!("{:?}, {}: {}", violation.rule, scale.time(violation.at), violation.what);
            picture.path("violation", &format!("M{x:.1} {:.1}V{bottom:.1}", TOP - 8.0), &title);
        }
    }

    fn client_of(&self, fault: &Fault) -> Option<u32> {
        match fault.effect {
            Effect::Pauses { client } | Effect::Stalls { client } | Effect::Kills { client } => Some(client),
            _ => self.concerned.get(&fault.began).copied(),
        }
    }

    /// A fault, and the client that it concerns.
    #[must_use]
    pub fn named(&self, fault: &Fault) -> String {
        let client = self.client_of(fault).map(|client| format!(" (client {client})"));
        format!("{}{}", fault.what, client.unwrap_or_default())
    }

    fn about(&self, fault: &Fault) -> String {
        let (from, to) = (seconds(fault.began, self.began), seconds(fault.ended, self.began));
        format!("{}, from {from} to {to}", self.named(fault))
    }
}

/// Whether nobody caused it.
#[must_use]
pub const fn is_stall(fault: &Fault) -> bool {
    matches!(fault.effect, Effect::Stalls { .. })
}

const fn class_of(fault: &Fault) -> &'static str {
    match fault.effect {
        Effect::Forgets => "band forgets",
        Effect::Kills { .. } => "band kills",
        Effect::Stalls { .. } => "band stalls",
        _ => "band",
    }
}

/// A client, and what it holds.
struct Lane<'a> {
    client: u32,
    y: f64,
    rows: usize,
    bars: Vec<Bar<'a>>,
    operations: Vec<&'a Operation>,
}

/// A hold, or several that cannot be told from each other.
struct Bar<'a> {
    from: Micros,
    to: Micros,
    row: usize,
    holds: Vec<&'a Operation>,
}

impl<'a> Lane<'a> {
    fn of(client: u32, operations: &[&'a Operation], died: Micros, scale: &Scale, gap: f64, y: f64) -> Self {
        let mut lane = Self { client, y, rows: 1, bars: Vec::new(), operations: operations.to_vec() };
        let mut holds: Vec<_> = operations
            .iter()
            .filter_map(|operation| {
                let (from, _) = operation.granted()?;
                let ends = [operation.releasing, operation.lost];
                let to = ends.into_iter().flatten().min().unwrap_or(died).min(died).max(from);
                scale.shows(from, to).then_some((from, to, *operation))
            })
            .collect();
        holds.sort_unstable_by_key(|(from, _, operation)| (*from, operation.id));
        // The last bar of each row.
        let mut last: Vec<usize> = Vec::new();
        for (from, to, operation) in holds {
            lane.add(&mut last, from, to, operation, scale, gap);
        }
        lane.rows = last.len().max(1);
        lane
    }

    fn add(
        &mut self,
        last: &mut Vec<usize>,
        from: Micros,
        to: Micros,
        operation: &'a Operation,
        scale: &Scale,
        gap: f64,
    ) {
        let row = last.iter().position(|bar| self.bars[*bar].to <= from).unwrap_or(last.len());
        if let Some(bar) = last.get(row).map(|bar| &mut self.bars[*bar]) {
            let is_close = scale.x(from) - scale.x(bar.to) < gap;
            if is_close && is_ordinary(operation) && bar.holds.iter().all(|hold| is_ordinary(hold)) {
                bar.to = to;
                bar.holds.push(operation);
                return;
            }
        }
        let bar = self.bars.len();
        self.bars.push(Bar { from, to, row, holds: vec![operation] });
        match last.get_mut(row) {
            Some(last) => *last = bar,
            None => last.push(bar),
        }
    }

    const fn height(&self) -> f64 {
        self.rows as f64 * ROW + WAITING
    }

    fn has(&self, token: u64) -> bool {
        self.operations.iter().any(|operation| operation.granted().is_some_and(|(_, of)| of == token))
    }
}

/// It need not have a bar of its own.
const fn is_ordinary(operation: &Operation) -> bool {
    operation.lost.is_none() && operation.releasing.is_some()
}

impl Bar<'_> {
    fn title(&self, scale: &Scale) -> String {
        let (from, to) = (scale.time(self.from), scale.time(self.to));
        let tokens: Vec<_> =
            self.holds.iter().filter_map(|hold| hold.granted()).map(|(_, token)| token).collect();
        match tokens[..] {
            [token] => format!("held from {from} to {to}, token {token}"),
            [first, .., last] => {
                format!("{} holds from {from} to {to}, tokens {first} to {last}", tokens.len())
            }
            [] => String::new(),
        }
    }
}

/// When at least one task of a client waited.
fn waits(lane: &Lane<'_>, scale: &Scale, y: f64) -> String {
    let mut spans: Vec<_> = lane
        .operations
        .iter()
        .map(|operation| (operation.asked, operation.returned.map_or(Micros::MAX, |(at, _)| at)))
        .filter(|(from, to)| scale.shows(*from, *to))
        .map(|(from, to)| (scale.x(from), scale.x(to)))
        .collect();
    spans.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (from, to) in spans {
        match joined.last_mut() {
            Some((_, end)) if from < *end + 1.0 => *end = end.max(to),
            _ => joined.push((from, to)),
        }
    }
    let lines = joined.iter().map(|(from, to)| format!("M{from:.0} {y:.0}H{:.0}", to.max(from + 1.0)));
    lines.collect()
}

/// What happens within so much of the whole is one mark.
const BUCKETS: u64 = 120;

fn bucket(scale: &Scale, n: u64) -> (Micros, Micros) {
    let length = scale.shown.end - scale.shown.start;
    (scale.shown.start + length * n / BUCKETS, scale.shown.start + length * (n + 1) / BUCKETS)
}

fn counts(scale: &Scale, moments: impl Iterator<Item = Micros>) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for at in moments.filter(|at| scale.shown.contains(at)) {
        let n = (at - scale.shown.start) * BUCKETS / (scale.shown.end - scale.shown.start);
        *counts.entry(n).or_default() += 1;
    }
    counts
}

fn marks(
    picture: &mut Picture,
    scale: &Scale,
    (name, class, y): (&str, &str, f64),
    moments: impl Iterator<Item = Micros>,
) {
    picture.words("label", (LEFT - 8.0, y + 4.0), "end", name);
    for (n, count) in counts(scale, moments) {
        let (from, to) = bucket(scale, n);
        let title = format!("{count} {name}, from {} to {}", scale.time(from), scale.time(to));
        picture.rectangle(&format!("mark {class}"), scale.area(from, to, y - 5.0, 11.0), &title);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::example::{Example, FAIR, LOCK};

    const SHOWN: Range<Micros> = 0..1_000_000;

    fn close_up(run: &Example, site: usize) -> String {
        let (history, verdict) = run.judged();
        let concerned = BTreeMap::from([(700_000, 2)]);
        Scene { history: &history, verdict: &verdict, began: 0, concerned: &concerned }.close_up(site, &SHOWN)
    }

    fn count(svg: &str, class: &str) -> usize {
        svg.matches(&format!("class=\"{class}\"")).count()
    }

    #[test]
    fn a_hold_is_a_bar_a_client_is_a_lane_and_a_loss_is_a_mark() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..100_000, 1).wait(LOCK, 2, 50_000, 110_000..200_000, 2);
        run.hold(LOCK, 1, 300_000..400_000, 3).lose(LOCK, 2, 500_000..600_000, 4).hold(FAIR, 3, 0..9, 5);
        let svg = close_up(&run, LOCK);
        assert_eq!((count(&svg, "held"), count(&svg, "lost"), count(&svg, "held many")), (4, 1, 0), "{svg}");
        assert!(svg.contains("client 1") && svg.contains("client 2") && !svg.contains("client 3"), "{svg}");
        assert!(svg.contains("held from 0.300 s to 0.400 s, token 3"), "{svg}");
        assert_eq!(count(&close_up(&run, FAIR), "held"), 1);
    }

    #[test]
    fn holds_that_cannot_be_told_from_each_other_are_one_bar() {
        let mut run = Example::default();
        for n in 0..9_000_u64 {
            run.hold(LOCK, 1, n * 100..n * 100 + 50, n + 1);
        }
        run.lose(LOCK, 1, 950_000..960_000, 10_000);
        let svg = close_up(&run, LOCK);
        assert_eq!((count(&svg, "held many"), count(&svg, "held")), (1, 1), "{svg}");
        assert!(svg.contains("9000 holds from 0.000 s to 0.900 s, tokens 1 to 9000"), "{svg}");
        assert!(svg.len() < 10_000, "{}", svg.len());
    }

    #[test]
    fn several_holds_of_a_client_at_once_are_above_each_other() {
        let mut run = Example::default();
        run.hold(FAIR, 1, 0..100_000, 1).hold(FAIR, 1, 50_000..150_000, 2).hold(FAIR, 1, 110_000..120_000, 3);
        let svg = close_up(&run, FAIR);
        let rows: Vec<_> = svg.lines().filter(|line| line.contains("class=\"held\"")).collect();
        let y = |line: &str| line.split(" y=\"").nth(1).map(|rest| rest.split('"').next().map(str::to_owned));
        assert!(y(rows[0]) != y(rows[1]) && y(rows[0]) == y(rows[2]), "{svg}");
    }

    #[test]
    fn faults_are_where_they_hit() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..100_000, 1).hold(LOCK, 2, 200_000..300_000, 2);
        run.fault(10_000..20_000, "all", Effect::Delays).fault(
            30_000..40_000,
            "stop",
            Effect::Pauses { client: 1 },
        );
        run.fault(700_000..710_000, "hold back", Effect::Delays);
        run.fault(1..2, "of a stranger", Effect::Pauses { client: 9 });
        run.fault(29_000..41_000, "busy", Effect::Stalls { client: 1 });
        run.fault(50_000..60_000, "busy", Effect::Stalls { client: 1 });
        let svg = close_up(&run, LOCK);
        assert_eq!(count(&svg, "band"), 3, "{svg}");
        assert_eq!(count(&svg, "band stalls"), 1, "{svg}");
        assert!(svg.contains("stop (client 1)") && svg.contains("hold back (client 2)"), "{svg}");
        assert!(!svg.contains("stranger"), "{svg}");
    }

    #[test]
    fn a_violation_is_a_line_through_the_lanes_of_its_lock() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..100_000, 1).hold(LOCK, 2, 50_000..150_000, 2).hold(FAIR, 1, 0..9, 3);
        assert_eq!(count(&close_up(&run, LOCK), "violation"), 1);
        assert_eq!(count(&close_up(&run, FAIR), "violation"), 0);
    }

    #[test]
    fn a_refused_write_is_in_the_lane_of_its_client() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..100_000, 100).hold(LOCK, 2, 200_000..300_000, 200);
        run.write(true, 200, 0, 1);
        let (mut history, verdict) = run.judged();
        history.writes[0].is_accepted = false;
        history.writes[0].at = 250_000;
        let scene = Scene { history: &history, verdict: &verdict, began: 0, concerned: &BTreeMap::new() };
        let svg = scene.close_up(LOCK, &SHOWN);
        assert!(svg.contains("a write under token 200 is refused at 0.250 s"), "{svg}");
        let overview = scene.overview(&SHOWN);
        assert_eq!((count(&overview, "mark refused"), count(&overview, "grants")), (1, 2), "{overview}");
    }
}
