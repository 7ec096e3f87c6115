//! The matrix of guarantees: each cell leads to a paragraph, which names for that store a test that exists.

use std::collections::BTreeMap;
use std::path::Path;

use crate::page::{anchor, files, root, text_of};

const PAGE: &str = "docs/guide/guarantees.md";
/// What does not happen.
const NOTHING: &str = "-";

#[test]
fn every_guarantee_is_explained_and_tested() {
    let text = text_of(&root().join(PAGE));
    let sections = sections(&text);
    let (stores, rows) = matrix(&text);
    let mut wrong = Vec::new();
    let mut tests = 0;
    for row in &rows {
        let (fault, cells) = row.split_first().expect("it has a title");
        let section = target(fault).and_then(|anchor| sections.get(anchor));
        let Some(section) = section else {
            wrong.push(format!("{fault}: there is no section"));
            continue;
        };
        for (store, cell) in stores.iter().zip(cells).filter(|(_, cell)| **cell != NOTHING) {
            if target(cell) != target(fault) {
                wrong.push(format!("{fault}, {store}: {cell} does not lead to the section"));
            }
            let named = section.get(&**store).map_or(&[][..], Vec::as_slice);
            if named.is_empty() {
                wrong.push(format!("{fault}: no test on {store}"));
            }
            wrong.extend(named.iter().filter(|test| !exists(test)).map(|test| format!("there is no {test}")));
            tests += named.len();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(tests >= 80, "only {tests} were found");
}

/// The stores, and the cells of each row of the first table.
fn matrix(text: &str) -> (Vec<String>, Vec<Vec<&str>>) {
    let table: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let [header, _, rows @ ..] = &table[..] else { panic!("a table") };
    let name =
        |cell: &&str| cell.trim_matches(['[', '`']).split([']', ':']).next().unwrap_or_default().to_owned();
    (header[1..].iter().map(name).collect(), rows.to_vec())
}

/// For each section, the tests of each store.
fn sections(text: &str) -> BTreeMap<String, BTreeMap<&str, Vec<&str>>> {
    let mut sections: BTreeMap<_, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for section in text.split("\n### ").skip(1) {
        let section = section.split("\n## ").next().unwrap_or_default();
        let (title, text) = section.split_once('\n').expect("a title");
        let tests = sections.entry(anchor(title)).or_default();
        // A line may go on in the next one.
        for line in text.split("\n* ").skip(1) {
            let (stores, named) = line.split_once(':').expect("stores, and their tests");
            let named: Vec<_> = named.split('`').filter(|part| part.contains("::")).collect();
            for store in stores.split(',') {
                tests.insert(store.trim(), named.clone());
            }
        }
    }
    sections
}

/// Where a link of this page leads.
fn target(cell: &str) -> Option<&str> {
    cell.split_once("](#")?.1.split(')').next()
}

/// Whether a program of this name has a test of this name, in its own files or in those that it shares with others.
fn exists(test: &str) -> bool {
    let (program, function) = test.split_once("::").expect("a program, and a function");
    let tests = root().join("tests");
    let own = match tests.join(format!("{program}.rs")) {
        file if file.is_file() => vec![file],
        _ if tests.join(program).is_dir() => files(&tests.join(program)),
        _ => return false,
    };
    let own: String = own.iter().map(|path| read(path)).collect();
    let shared = files(&tests.join("support"));
    let shared = shared.iter().filter(|path| {
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        own.contains(&format!("{name}!")) || own.contains(&format!("mod {name};"))
    });
    let has = |text: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.split(|c| !is_part(c)).any(|word| word == function)
    };
    has(&own) || shared.into_iter().any(|path| has(&read(path)))
}

fn read(path: &Path) -> String {
    if path.extension().is_some_and(|extension| extension == "rs") {
        return text_of(path);
    }
    String::new()
}
