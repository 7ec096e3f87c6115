//! The README and the pages in `docs/`: every link within the repository leads to a file and a heading that exist, those
//! of the guide to its own pages, every page of the guide is in its table of contents, the README is short, and the SQL for fencing does what it is
//! said to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use rusqlite::{Connection, params};

/// What a stranger is willing to read.
const README_WORDS: usize = 1500;

#[test]
fn every_link_leads_somewhere() {
    let pages: BTreeMap<PathBuf, Page> =
        pages().into_iter().map(|path| (path.clone(), Page::read(&path))).collect();
    let guide = root().join("docs");
    let mut dead = Vec::new();
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (file, heading) =
                link.split_once('#').map_or((&**link, None), |(file, heading)| (file, Some(heading)));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().expect("a file").join(file) };
            let Ok(target) = target.canonicalize() else {
                dead.push(format!("{}: {link}", path.display()));
                continue;
            };
            if path.starts_with(&guide) && !target.starts_with(&guide) {
                dead.push(format!("{}: {link}: it is not part of the guide", path.display()));
                continue;
            }
            let has = |heading: &str| pages.get(&target).is_none_or(|page| page.headings.contains(heading));
            if heading.is_some_and(|heading| !has(heading)) {
                dead.push(format!("{}: {link}: there is no such heading", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
    let links = pages.values().map(|page| page.links.len()).sum::<usize>();
    assert!(links > 50, "only {links} links were found");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let summary = root().join("docs/SUMMARY.md");
    let listed: BTreeSet<_> = Page::read(&summary)
        .links
        .iter()
        .map(|link| summary.parent().expect("a file").join(link).canonicalize().expect("the page exists"))
        .collect();
    let missing: Vec<_> =
        guide_pages().into_iter().filter(|page| *page != summary && !listed.contains(page)).collect();
    assert!(missing.is_empty(), "not in SUMMARY.md: {missing:?}");
}

#[test]
fn the_readme_is_short() {
    let words = fs::read_to_string(root().join("README.md")).expect("it exists").split_whitespace().count();
    assert!(words <= README_WORDS, "{words} words");
}

/// SQLite understands the statements for PostgreSQL.
#[test]
fn the_sql_for_fencing_rejects_a_late_write() {
    let page = Page::read(&root().join("docs/guide/fencing.md"));
    let sql = page.code.get("sql").and_then(|blocks| blocks.first()).expect("it has SQL");
    let mut statements = sql.split(";\n").map(str::trim).filter(|statement| !statement.is_empty());
    let mut next = || statements.next().expect("it has three statements");
    let (create, read, write) = (next(), next(), next());
    let database = Connection::open_in_memory().expect("SQLite works");
    database.execute(create, ()).expect("the table is created");
    database.execute("INSERT INTO machine (id) VALUES ('machine:42')", ()).expect("the row is inserted");
    let reads = |token: i64| {
        let mut statement = database.prepare(read).expect("it can be prepared");
        statement.query_map(params![token], |row| row.get::<_, String>(0)).expect("it runs").count()
    };
    let writes = |token: i64| database.execute(write, params![token]).expect("it runs");
    assert_eq!((reads(5), writes(5)), (1, 1), "the holder");
    assert_eq!(reads(7), 1, "the next holder");
    assert_eq!((reads(5), writes(5)), (0, 0), "the first one, late");
    assert_eq!((writes(7), writes(7)), (1, 1), "as often as it likes");
}

/// A page, as a reader sees it.
#[derive(Debug, Default)]
struct Page {
    links: Vec<String>,
    /// The anchors of its headings.
    headings: BTreeSet<String>,
    /// By language.
    code: BTreeMap<String, Vec<String>>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut page = Self::default();
        let (mut heading, mut code) = (None::<String>, None::<(String, String)>);
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into())
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.headings.extend(heading.take().as_deref().map(anchor)),
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    code = Some((language.into(), String::new()));
                }
                Event::End(TagEnd::CodeBlock) => {
                    if let Some((language, text)) = code.take() {
                        page.code.entry(language).or_default().push(text);
                    }
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some((_, code)) = &mut code {
                        code.push_str(&text);
                    } else if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// As GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository exists")
}

/// The README, the other pages beside it, and the guide.
fn pages() -> Vec<PathBuf> {
    let beside = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|page| root().join(page));
    beside.into_iter().chain(guide_pages()).collect()
}

/// All pages in `docs/`.
fn guide_pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("it can be read") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}
