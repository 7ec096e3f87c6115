//! The report as one page of HTML.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use super::moments::Moments;
use super::svg::escape;
use super::timeline::{Scene, is_stall, seconds};
use crate::history::{Fault, Micros, Refusal};
use crate::judge::Rule;

/// What is judged, in words.
pub const RULES: [(Rule, &str); 7] = [
    (Rule::I1, "no more is held at once than the limit"),
    (Rule::I2, "tokens increase in the order of grants"),
    (Rule::I3, "data that checks tokens loses no change"),
    (Rule::I4, "a loss is told within 50 ms of the deadline"),
    (Rule::I5, "whoever waits is served in time"),
    (Rule::I6, "nothing is left"),
    (Rule::I7, "grants follow the order of arrival"),
];
/// How many violations and faults are written out: a page of more would be of no use.
const WRITTEN_OUT: usize = 300;

/// What a page is about.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// What is in its pictures.
    pub scene: Scene<'a>,
    /// The store and the scenario.
    pub title: String,
    /// What must hold.
    pub holds: &'a str,
    /// Other facts about the run, by name: its options, for instance.
    pub facts: Vec<(&'a str, String)>,
    /// The last line of the report as text.
    pub summary: String,
    /// How often calls failed, by their kind, and how one of them did.
    pub errors: Vec<(&'a str, usize, &'a str)>,
}

impl Page<'_> {
    /// The whole page.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escape(&self.title);
        let body = [
            self.head(),
            self.rules(),
            self.violations(),
            self.pictures(),
            self.operations(),
            self.data(),
            self.recovery(),
            self.failures(),
            self.faults(),
        ];
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
            body.concat()
        )
    }

    fn head(&self) -> String {
        let mut facts = String::new();
        for (name, fact) in &self.facts {
            let _ = write!(facts, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(fact));
        }
        let outcome = if self.scene.verdict.violations.is_empty() { "fine" } else { "broken" };
        format!(
            "<h1>{}</h1>\n<p class=\"{outcome}\">{}</p>\n<p>Must hold: {}.</p>\n<dl>{facts}</dl>\n",
            escape(&self.title),
            escape(&self.summary),
            escape(self.holds)
        )
    }

    fn rules(&self) -> String {
        let rows = RULES.map(|(rule, what)| {
            [format!("{rule:?}"), what.to_owned(), self.scene.verdict.count(rule).to_string()]
        });
        section("Rules", &table(["rule", "what it says", "violations"], rows))
    }

    fn violations(&self) -> String {
        let violations = &self.scene.verdict.violations;
        let rows = violations.iter().take(WRITTEN_OUT).map(|violation| {
            [format!("{:?}", violation.rule), self.at(violation.at), self.readable(&violation.what)]
        });
        let left = more(violations.len());
        match violations.len() {
            0 => String::new(),
            _ => section("Violations", &format!("{}{left}", table(["rule", "at", "what"], rows))),
        }
    }

    fn pictures(&self) -> String {
        let Scene { history, verdict, .. } = self.scene;
        let moments = Moments::of(history, verdict);
        let mut text = format!(
            "<p>{} of the run, from {} to {}: what was granted, and over it what went wrong.</p>\n{}",
            if moments.minute.end - moments.minute.start < 60_000_000 { "All" } else { "A minute" },
            self.at(moments.minute.start),
            self.at(moments.minute.end),
            framed(&self.scene.overview(&moments.minute))
        );
        let _ = writeln!(
            text,
            "<p>From {} to {}, one lane for each client. {LEGEND}</p>",
            self.at(moments.seconds.start),
            self.at(moments.seconds.end)
        );
        for site in &moments.sites {
            let name = escape(&history.sites[*site].name);
            let _ =
                writeln!(text, "<h3>{name}</h3>\n{}", framed(&self.scene.close_up(*site, &moments.seconds)));
        }
        section("Timeline", &text)
    }

    /// By kind: the locks of a kind are numbered.
    fn operations(&self) -> String {
        let history = self.scene.history;
        let mut kinds: BTreeMap<&str, [usize; 7]> = BTreeMap::new();
        for operation in &history.operations {
            let name = &history.sites[operation.request.site].name;
            let kind = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ');
            let counts = kinds.entry(kind).or_default();
            counts[0] += 1;
            match operation.returned {
                Some((_, Ok(_))) => counts[1] += 1,
                Some((_, Err(Refusal::Busy))) => counts[2] += 1,
                Some((_, Err(Refusal::TimedOut))) => counts[3] += 1,
                Some((_, Err(Refusal::Dropped))) => counts[4] += 1,
                Some((_, Err(Refusal::Failed | Refusal::Lost))) => counts[5] += 1,
                None => {}
            }
            counts[6] += usize::from(operation.lost.is_some());
        }
        let rows = kinds.into_iter().map(|(kind, counts)| {
            let counts = counts.map(|count| count.to_string());
            let [requests, granted, busy, timed_out, dropped, failed, lost] = counts;
            [kind.to_owned(), requests, granted, busy, timed_out, dropped, failed, lost]
        });
        let names =
            ["kind", "requests", "granted", "held by others", "timed out", "given up", "failed", "lost"];
        section("Operations", &table(names, rows))
    }

    fn data(&self) -> String {
        let Scene { history, verdict, .. } = self.scene;
        let refused = history.writes.iter().filter(|write| !write.is_accepted).count();
        let rows = [
            ("changes of data", history.writes.len()),
            ("changes that were refused, because their token was too old", refused),
            ("changes lost by data that does not check tokens", verdict.lost_changes),
            ("overlaps while exclusion was not promised", verdict.excused),
        ];
        section(
            "Data",
            &table(["what", "how often"], rows.map(|(what, count)| [what.to_owned(), count.to_string()])),
        )
    }

    fn recovery(&self) -> String {
        let rows = self
            .scene
            .verdict
            .recovery
            .iter()
            .map(|(fault, longest)| [fault.clone(), format!("{} ms", longest / 1_000)]);
        let text = table(["fault", "the longest wait after it, for what nobody held"], rows);
        section("Recovery", &text)
    }

    fn failures(&self) -> String {
        let rows = self
            .errors
            .iter()
            .map(|(kind, count, example)| [(*kind).to_owned(), count.to_string(), (*example).to_owned()]);
        if self.errors.is_empty() {
            String::new()
        } else {
            section("Errors", &table(["call", "how often", "such as"], rows))
        }
    }

    fn faults(&self) -> String {
        let faults: Vec<&Fault> = self.scene.history.faults.iter().filter(|fault| !is_stall(fault)).collect();
        let mut kinds: BTreeMap<&str, (usize, Micros)> = BTreeMap::new();
        for fault in &faults {
            let kind = kinds.entry(&fault.what).or_default();
            kind.0 += 1;
            kind.1 = kind.1.max(fault.ended - fault.began);
        }
        let rows = kinds.into_iter().map(|(what, (count, longest))| {
            [what.to_owned(), count.to_string(), format!("{} ms", longest / 1_000)]
        });
        let kinds = table(["fault", "how often", "the longest"], rows);
        let rows = faults.iter().take(WRITTEN_OUT).map(|fault| {
            let lasted = format!("{} ms", (fault.ended - fault.began) / 1_000);
            [self.at(fault.began), lasted, self.scene.named(fault)]
        });
        let list = table(["at", "for", "fault"], rows);
        let left = more(faults.len());
        section(
            "Faults",
            &format!("{kinds}<details><summary>Each of them</summary>\n{list}{left}</details>\n"),
        )
    }

    /// With moments counted from the beginning. Other numbers look like moments: what is before them tells.
    fn readable(&self, what: &str) -> String {
        let mut last = "";
        let words = what.split(' ').map(|word| {
            let number = word.trim_end_matches([',', ';', ':']);
            let moment =
                number.parse().ok().filter(|at| (self.scene.began..=self.scene.history.end).contains(at));
            let is_moment = ["at", "at:", "from", "to"].contains(&std::mem::replace(&mut last, word));
            match moment.filter(|_| is_moment) {
                Some(at) => format!("{}{}", self.at(at), &word[number.len()..]),
                None => word.to_owned(),
            }
        });
        words.collect::<Vec<_>>().join(" ")
    }

    fn at(&self, at: Micros) -> String {
        seconds(at, self.scene.began)
    }
}

fn more(count: usize) -> String {
    match count.saturating_sub(WRITTEN_OUT) {
        0 => String::new(),
        left => format!("<p>And {left} more.</p>\n"),
    }
}

fn section(title: &str, content: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n{content}</section>\n")
}

/// What is wider than the page can be moved sideways.
fn framed(content: &str) -> String {
    format!("<div class=\"wide\">\n{content}</div>\n")
}

/// What is a number is on the right.
fn table<const COLUMNS: usize>(
    names: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> String {
    let mut text = String::from("<table>\n<thead>");
    row(&mut text, "th", &names);
    text.push_str("</thead>\n<tbody>\n");
    for cells in rows {
        row(&mut text, "td", &cells);
    }
    text.push_str("</tbody>\n</table>\n");
    framed(&text)
}

fn row(text: &mut String, element: &str, cells: &[impl Display]) {
    text.push_str("<tr>");
    for cell in cells {
        let cell = escape(&cell.to_string());
        let is_number = cell.starts_with(|c: char| c.is_ascii_digit()) && cell.len() < 16;
        let class = if is_number { " class=\"number\"" } else { "" };
        let _ = write!(text, "<{element}{class}>{cell}</{element}>");
    }
    text.push_str("</tr>\n");
}

const LEGEND: &str = "<span class=\"key\"><svg viewBox=\"0 0 26 12\"><rect class=\"held\" width=\"26\" height=\"9\" y=\"1\"/>\
</svg> held</span> <span class=\"key\"><svg viewBox=\"0 0 26 12\"><rect class=\"held many\" width=\"26\" height=\"9\" y=\"1\"/>\
</svg> several holds, close to each other</span> <span class=\"key\"><svg viewBox=\"0 0 26 12\"><rect class=\"ended\" width=\"26\" \
height=\"9\" y=\"1\"/></svg> the lease has ended, and its holder cannot be told</span> <span class=\"key\">\
<svg viewBox=\"0 0 26 12\"><path class=\"waits\" d=\"M0 6H26\"/></svg> waits</span> <span class=\"key\">\
<svg viewBox=\"0 0 26 12\"><path class=\"lost\" d=\"M8 1h10l-5 9z\"/></svg> told of a loss</span> <span class=\"key\">\
<svg viewBox=\"0 0 26 12\"><path class=\"refused\" d=\"M13 0l5 6l-5 6l-5 -6z\"/></svg> a write is refused</span> \
<span class=\"key\"><svg viewBox=\"0 0 26 12\"><rect class=\"band\" width=\"26\" height=\"12\"/></svg> a fault</span> \
<span class=\"key\"><svg viewBox=\"0 0 26 12\"><rect class=\"band forgets\" width=\"26\" height=\"12\"/></svg> the store \
forgets</span> <span class=\"key\"><svg viewBox=\"0 0 26 12\"><rect class=\"band kills\" x=\"11\" width=\"2\" height=\"12\"/></svg> \
killed</span> <span class=\"key\"><svg viewBox=\"0 0 26 12\"><rect class=\"band stalls\" width=\"26\" height=\"12\"/></svg> the \
machine was busy</span> <span class=\"key\"><svg viewBox=\"0 0 26 12\"><path class=\"violation\" d=\"M13 0V12\"/></svg> a \
violation</span> Point at anything to see its time and its token.";

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::history::Effect;
    use crate::judge::example::{Example, LOCK};

    fn html(run: &Example) -> String {
        let (history, verdict) = run.judged();
        let concerned = BTreeMap::new();
        let scene = Scene { history: &history, verdict: &verdict, began: 0, concerned: &concerned };
        let page = Page {
            scene,
            title: "a <store>".to_owned(),
            holds: "I1 & I2",
            facts: vec![("seed", "7".to_owned())],
            summary: "torture: 3".to_owned(),
            errors: vec![("request: <busy>", 2, "\"no\"")],
        };
        page.html()
    }

    #[test]
    fn everything_is_told_and_nothing_from_elsewhere_is_needed() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..1_000, 10_000_000).hold(LOCK, 2, 900..2_000, 20_000_000);
        run.fault(3..5, "<b>stop</b>", Effect::Delays);
        let html = html(&run);
        assert!(html.contains("<p class=\"broken\">") && html.contains("2 of 1 permits"), "{html}");
        let hold = "hold 2 of client 2, asked at 0.001 s, granted at 0.001 s under token 20000000:";
        assert!(html.contains(hold), "{html}");
        for escaped in ["a &lt;store&gt;", "I1 &amp; I2", "&lt;b&gt;stop&lt;/b&gt;", "request: &lt;busy&gt;"]
        {
            assert!(html.contains(escaped), "{escaped}: {html}");
        }
        for foreign in ["<b>", "<script", "http:", "https:", "url(", "@import", " src=", "<link", " href="] {
            assert!(!html.contains(foreign), "{foreign}: {html}");
        }
    }

    #[test]
    fn a_run_without_violations_says_so() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100);
        let html = html(&run);
        assert!(html.contains("<p class=\"fine\">") && !html.contains("<h2>Violations"), "{html}");
    }
}
