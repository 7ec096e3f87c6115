//! Puts scripts together. A script is a text that may use what the files of the library define: the linker puts the
//! definitions that it needs before it, and those that these need before them.
//!
//! Creating a function costs the server 400 to 800 instructions, used or not, so a text has parts:
//!
//! * What follows a line `OTHERWISE` is a function within what precedes it, and so are the definitions that only it
//!   needs. They are created only if what precedes it has not returned.
//! * A line `DEFINITIONS` in a function stands for the definitions that only the rest of this function needs.
//!
//! Comments are left out, and the values of constants are put in place of their names.

use std::iter;
use std::sync::LazyLock;

use super::protocol;

/// A file of Lua.
macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("lua/", $file, ".lua"))
    };
}
pub(super) use lua;

const LIBRARY: &[&str] = &[
    lua!("lib/base"),
    lua!("lib/keys"),
    lua!("lib/time"),
    lua!("lib/fence"),
    lua!("lib/grant"),
    lua!("lib/notify"),
    lua!("lib/queue"),
    lua!("lib/join_queue"),
    lua!("lib/hand_over"),
    lua!("lib/living"),
    lua!("lib/waiting"),
    lua!("lock/value"),
    lua!("lock/lock"),
    lua!("lock/holds"),
    lua!("lock/gap"),
    lua!("lock/acquire"),
    lua!("lock/settle"),
    lua!("lock/renew"),
    lua!("lock/renew_owned"),
    lua!("lock/release"),
    lua!("lock/force"),
    lua!("lock/announced"),
    lua!("semaphore/token"),
    lua!("semaphore/state"),
    lua!("semaphore/semaphore"),
    lua!("semaphore/acquire"),
    lua!("semaphore/renew"),
    lua!("semaphore/release"),
    lua!("semaphore/fast"),
    lua!("semaphore/resize"),
    lua!("operations"),
];

/// The constant that says in Lua whether the script runs in a cluster.
const IN_CLUSTER: &str = "IN_CLUSTER";

/// A function or a variable of the library: a line that starts with `local`, and the indented lines after it.
#[derive(Debug)]
struct Definition {
    names: Vec<&'static str>,
    lines: Vec<&'static str>,
}

static DEFINITIONS: LazyLock<Vec<Definition>> = LazyLock::new(|| {
    let mut definitions: Vec<Definition> = Vec::new();
    for line in LIBRARY.iter().flat_map(|file| code(file)) {
        if line.starts_with("local ") {
            definitions.push(Definition { names: declared(line).collect(), lines: vec![line] });
        } else {
            definitions.last_mut().expect("a file of the library starts with a definition").lines.push(line);
        }
    }
    definitions
});

/// The script that consists of this text and what it needs.
pub(super) fn link(text: &'static str, in_cluster: bool) -> String {
    let mut linked = Linked { source: String::new(), in_cluster };
    let lines: Vec<_> = code(text).collect();
    let mut defined = Vec::new();
    for (depth, part) in lines.split(|line| *line == "OTHERWISE").enumerate() {
        if depth > 0 {
            linked.append("return (function()");
        }
        linked.define_and_append(part, &mut defined);
    }
    for _ in lines.iter().filter(|line| **line == "OTHERWISE") {
        linked.append("end)()");
    }
    linked.source
}

fn code(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.trim_start().starts_with("--"))
}

struct Linked {
    source: String,
    in_cluster: bool,
}

impl Linked {
    /// Appends lines, and before them what they use of the library, unless it is among what is `defined` already.
    fn define_and_append(&mut self, lines: &[&'static str], defined: &mut Vec<&'static str>) {
        let own: Vec<_> = lines.iter().flat_map(|line| declared(line.trim_start())).collect();
        let mut outside = lines;
        while let Some((line, rest)) = outside.split_first() {
            outside = if is_definitions(line) { &rest[length_of_block(line, rest)..] } else { rest };
            for name in names_in(line).filter(|name| !own.contains(name)) {
                let definition = DEFINITIONS.iter().find(|definition| definition.names.contains(&name));
                if let Some(definition) = definition.filter(|_| !defined.contains(&name)) {
                    defined.extend(&definition.names);
                    self.define_and_append(&definition.lines, defined);
                }
            }
        }
        self.append_all(lines, defined);
    }

    fn append_all(&mut self, mut lines: &[&'static str], defined: &[&'static str]) {
        while let Some((line, rest)) = lines.split_first() {
            lines = rest;
            if is_definitions(line) {
                let (block, after) = rest.split_at(length_of_block(line, rest));
                self.define_and_append(block, &mut defined.to_vec());
                lines = after;
            } else {
                self.append(line);
            }
        }
    }

    fn append(&mut self, line: &str) {
        let mut rest = line.trim_start();
        while let Some(start) = rest.find(is_of_name) {
            let (before, from) = rest.split_at(start);
            let (name, after) = from.split_at(from.find(|c| !is_of_name(c)).unwrap_or(from.len()));
            let constant = protocol::TABLE.iter().find(|(known, _)| *known == name);
            self.source.push_str(before);
            self.source.push_str(match (name, constant) {
                (IN_CLUSTER, _) if self.in_cluster => "true",
                (IN_CLUSTER, _) => "false",
                (_, Some((_, value))) => value,
                (_, None) => name,
            });
            rest = after;
        }
        self.source.push_str(rest);
        self.source.push('\n');
    }
}

/// The names that a line declares.
fn declared(line: &'static str) -> impl Iterator<Item = &'static str> {
    let rest = line.strip_prefix("local ").map(|rest| rest.trim_start_matches("function "));
    let names = rest.and_then(|rest| rest.split(['(', '=']).next()).unwrap_or_default();
    names.split(',').map(str::trim).filter(|name| !name.is_empty())
}

fn is_definitions(line: &str) -> bool {
    line.trim_start() == "DEFINITIONS"
}

/// How many lines follow `line` that are indented as it is, or further.
fn length_of_block(line: &str, after: &[&str]) -> usize {
    let indent = |line: &str| line.len() - line.trim_start().len();
    after.iter().take_while(|other| indent(other) >= indent(line)).count()
}

/// The names in a line, except those of fields and those that are set.
fn names_in(line: &'static str) -> impl Iterator<Item = &'static str> {
    let mut rest = line;
    iter::from_fn(move || {
        let from = &rest[rest.find(is_of_name)?..];
        let before = line[..line.len() - from.len()].chars().next_back();
        let (name, after) = from.split_at(from.find(|c| !is_of_name(c)).unwrap_or(from.len()));
        rest = after;
        let is_set = after.starts_with(" = ");
        Some((before != Some('.') && !is_set).then_some(name))
    })
    .flatten()
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_put_in_place_of_their_names_and_comments_are_left_out() {
        let source = link(
            "-- BUSY\n  local a = BUSY, 'BUSY ', MY_BUSY\n\nlocal b\nOTHERWISE\nreturn IN_CLUSTER",
            true,
        );
        let expected = "local a = 0, '0 ', MY_BUSY\nlocal b\nreturn (function()\nreturn true\nend)()\n";
        assert_eq!(source, expected);
    }

    #[test]
    fn what_a_text_needs_is_defined_before_it_once_and_where_it_is_needed() {
        let source =
            link("local a = millis(1)\nOTHERWISE\nreturn waiting_for(millis, r.keep), remove", false);
        let at = |text: &str| source.find(text).unwrap_or_else(|| panic!("no {text:?} in {source}"));
        assert!(at("local function millis") < at("local a = millis(1)"), "{source}");
        assert!(at("return (function()") < at("local function waiting_for"), "{source}");
        assert!(at("local function waiting_for") < at("local function remove"), "{source}");
        assert_eq!(source.matches("local function waiting_for").count(), 1, "{source}");
        assert_eq!(source.matches("local function millis").count(), 1, "{source}");
        assert!(!source.contains("local function keep"), "{source}");
    }

    #[test]
    fn a_function_may_have_definitions_of_its_own() {
        let source =
            link("local function of_locks()\n  DEFINITIONS\n  return renew\nend\nreturn renew", false);
        let at = |text: &str| source.find(text).unwrap_or_else(|| panic!("no {text:?} in {source}"));
        assert!(at("local function renew") < at("local function of_locks"), "{source}");
        let source = link("local function of_locks()\n  DEFINITIONS\n  return renew\nend\nreturn 1", false);
        assert!(source.find("local function of_locks") < source.find("local function renew"), "{source}");
    }

    #[test]
    fn every_name_is_defined_once() {
        let mut names: Vec<_> = DEFINITIONS.iter().flat_map(|definition| &definition.names).collect();
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
