//! Pages, as their readers see them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) path: PathBuf,
    pub(crate) links: Vec<String>,
    /// The anchors of its headings.
    pub(crate) headings: BTreeSet<String>,
    pub(crate) code: Vec<Code>,
}

/// A block of code.
#[derive(Debug)]
pub(crate) struct Code {
    /// What is written behind the fence, such as `sh` and `on-redis`.
    pub(crate) tags: Vec<String>,
    pub(crate) text: String,
}

impl Code {
    pub(crate) fn language(&self) -> &str {
        self.tags.first().map_or("", |tag| tag)
    }

    pub(crate) fn has(&self, tag: &str) -> bool {
        self.tags.iter().skip(1).any(|found| found == tag)
    }

    /// The store on which it is run.
    pub(crate) fn store(&self) -> Option<&str> {
        self.tags.iter().find_map(|tag| tag.strip_prefix("on-"))
    }
}

impl Page {
    pub(crate) fn read(path: &Path) -> Self {
        let text = text_of(path);
        let mut page = Self { path: path.to_owned(), ..Self::default() };
        let (mut heading, mut code) = (None::<String>, None::<Code>);
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => page.headings.extend(heading.take().as_deref().map(anchor)),
                Event::Start(Tag::CodeBlock(kind)) => {
                    let tags = match kind {
                        CodeBlockKind::Fenced(tags) => tags.split(',').map(str::to_owned).collect(),
                        CodeBlockKind::Indented => Vec::new(),
                    };
                    code = Some(Code { tags, text: String::new() });
                }
                Event::End(TagEnd::CodeBlock) => page.code.extend(code.take()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(code) = &mut code {
                        code.text.push_str(&text);
                    } else if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }

    /// In the repository.
    pub(crate) fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }
}

/// As GitHub makes it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

pub(crate) fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository exists")
}

/// The README, the other pages beside it and in the folders of packages, and the guide.
pub(crate) fn pages() -> Vec<Page> {
    let folders = ["", ".github", "benches", "cli"].map(|folder| root().join(folder));
    let beside = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten());
    let mut found: Vec<_> = beside.map(|entry| entry.expect("it can be read").path()).collect();
    found.retain(|path| is_page(path));
    found.extend(guide_pages());
    found.sort();
    found.iter().map(|path| Page::read(path)).collect()
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

/// All pages in `docs/`.
pub(crate) fn guide_pages() -> Vec<PathBuf> {
    let mut found = files(&root().join("docs"));
    found.retain(|path| is_page(path));
    found
}

/// All files in this folder and those below, in order.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // It may not be there.
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("it can be read").path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}
