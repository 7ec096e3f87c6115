//! The README and the guide: every link within the repository leads to a page and a heading that exist, every page is in
//! the table of contents, the README is short, and every block of code is compiled, parsed or run.

mod commands;
#[path = "../support/etcd.rs"]
mod etcd;
mod fencing;
#[path = "../support/sqlite.rs"]
mod file;
mod guarantees;
mod languages;
#[path = "../support/mysql.rs"]
mod mysql;
mod page;
#[path = "../support/postgres.rs"]
mod postgres;
#[path = "../support/zookeeper.rs"]
mod zookeeper;

use std::collections::{BTreeMap, BTreeSet};

use page::{Page, guide_pages, pages, root, text_of};

/// What a stranger is willing to read.
const README_WORDS: usize = 1500;

#[test]
fn every_link_leads_somewhere() {
    let guide = root().join("docs");
    let pages: BTreeMap<_, _> = pages().into_iter().map(|page| (page.path.clone(), page)).collect();
    let mut dead = Vec::new();
    for (path, page) in &pages {
        for link in page.links.iter().filter(|link| !link.contains("://") && !link.starts_with("mailto:")) {
            let (file, heading) =
                link.split_once('#').map_or((&**link, None), |(file, heading)| (file, Some(heading)));
            let target =
                if file.is_empty() { path.clone() } else { path.parent().expect("a file").join(file) };
            let Ok(target) = target.canonicalize() else {
                dead.push(format!("{}: {link}", page.name()));
                continue;
            };
            // Nothing else is in the book.
            if path.starts_with(&guide) && !target.starts_with(&guide) {
                dead.push(format!("{}: {link}: it is not part of the guide", page.name()));
            }
            let has = |heading: &str| pages.get(&target).is_none_or(|page| page.headings.contains(heading));
            if heading.is_some_and(|heading| !has(heading)) {
                dead.push(format!("{}: {link}: there is no such heading", page.name()));
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
    let words = text_of(&root().join("README.md")).split_whitespace().count();
    assert!(words <= README_WORDS, "{words} words");
}

/// What a newcomer asks first is answered by the README, or by a page that it or the front page of the guide links to.
#[test]
fn answers_are_two_clicks_away() {
    let front: Vec<_> = [root().join("README.md"), root().join("docs/README.md")]
        .iter()
        .flat_map(|path| Page::read(path).links)
        .collect();
    for answer in [
        "guide/blocking.md",
        "guide/choosing.md#which-store",
        "guide/election.md",
        "guide/fencing.md",
        "guide/guarantees.md#the-holder-is-paused-for-longer-than-its-lease",
        "guide/kubernetes.md#rolling-out-a-change",
        "guide/locks.md",
        "guide/migrating.md",
        "guide/observability.md",
        "guide/operating.md#breaking-a-lock",
        "guide/operating.md#who-holds-it",
        "guide/shutdown.md",
        "guide/testing.md",
        "guide/ttl.md",
    ] {
        assert!(front.iter().any(|link| link.ends_with(answer)), "{answer} is not linked to");
    }
}

/// Whoever is woken by a line in the log finds it in the guide.
#[test]
fn every_line_in_the_log_is_explained() {
    let read = |page: &str| text_of(&root().join("docs/guide").join(page));
    let (events, explained) = (read("observability.md"), read("trouble.md"));
    let rows = events.lines().filter(|line| line.starts_with("| `leasehold::"));
    let levels = ["INFO", "WARN", "ERROR"];
    let mut messages = rows.filter_map(|row| {
        let cells: Vec<_> = row.split(" | ").collect();
        (cells.len() > 2 && levels.contains(&cells[1])).then(|| cells[2])
    });
    let count = messages.clone().count();
    assert!(count > 30, "only {count} were found");
    assert_eq!(messages.find(|message| !explained.contains(message)), None, "in trouble.md");
}

#[test]
fn every_feature_is_listed() {
    let page = text_of(&root().join("docs/guide/stores.md"));
    let is_listed = |feature: &String| page.contains(&format!("\n| `{feature}` |"));
    let is_public = |feature: &String| feature != "default" && !feature.starts_with('_');
    let missing: Vec<_> =
        languages::features().into_iter().filter(is_public).filter(|name| !is_listed(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
