//! What the user sees and does: rows, their order, the filter, and the row that is selected.

use std::cmp::Reverse;

use leasehold::Purpose;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::Seen;
use crate::commands::list::Row;
use crate::commands::show;

/// What rows are sorted by; those that are equal, by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    Name,
    Holder,
    /// The oldest first.
    Age,
    /// Those with the most waiters first.
    Waiters,
}

impl Order {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Holder => "holder",
            Self::Age => "age",
            Self::Waiters => "waiters",
        }
    }
}

/// What a key asks of the program.
#[derive(Debug, PartialEq)]
pub(super) enum Wish {
    Nothing,
    Look,
    Quit,
}

/// What a row is about.
type Id = (Purpose, String);

#[derive(Debug)]
pub(super) struct View {
    pub(super) store: String,
    pub(super) prefix: String,
    pub(super) has_color: bool,
    /// Since when the store is away, and why.
    pub(super) away: Option<String>,
    /// Why the last look has failed.
    pub(super) failure: Option<String>,
    pub(super) looked: bool,
    pub(super) order: Order,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    all: Vec<Row>,
    /// Those that the filter lets through, sorted.
    pub(super) rows: Vec<Row>,
    selected: Option<Id>,
    /// The first row in the window.
    pub(super) top: usize,
    /// How many rows fit into the window.
    pub(super) height: usize,
    /// What is shown in detail, and its text once it is known.
    detail: Option<(Id, Option<String>)>,
}

impl View {
    pub(super) fn new(store: &str, prefix: &str, has_color: bool) -> Self {
        Self {
            store: store.to_owned(),
            prefix: prefix.to_owned(),
            has_color,
            away: None,
            failure: None,
            looked: false,
            order: Order::Name,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            all: Vec::new(),
            rows: Vec::new(),
            selected: None,
            top: 0,
            height: 1,
            detail: None,
        }
    }

    /// After a look: what was found, or the rows of before if the store is away.
    pub(super) fn update(&mut self, found: Result<Seen, String>) {
        match found {
            Ok(Seen { all, detail }) => {
                self.looked = true;
                self.failure = None;
                self.all = all.iter().map(Row::of).collect();
                if let (Some(((purpose, name), text)), Some(found)) = (&mut self.detail, detail)
                    && found.purpose == *purpose
                {
                    *text = Some(show::text(name, &found));
                }
                self.arrange();
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// How many rows there are, those that the filter keeps out included.
    pub(super) fn total(&self) -> usize {
        self.all.len()
    }

    pub(super) fn shown_in_detail(&self) -> Option<Id> {
        self.detail.as_ref().map(|(id, _)| id.clone())
    }

    /// The text of what is shown in detail.
    pub(super) fn detail(&self) -> Option<&str> {
        self.detail.as_ref().map(|(_, text)| text.as_deref().unwrap_or("looking ..."))
    }

    /// The number of the selected row.
    pub(super) fn selected(&self) -> Option<usize> {
        let (purpose, name) = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.purpose == *purpose && row.name == *name)
    }

    /// Makes the window show the selected row, and no empty lines while there are rows.
    pub(super) fn scroll(&mut self, height: usize) {
        self.height = height.max(1);
        self.top = self.top.min(self.rows.len().saturating_sub(self.height));
        if let Some(selected) = self.selected() {
            self.top = self.top.clamp((selected + 1).saturating_sub(self.height), selected);
        }
    }

    fn arrange(&mut self) {
        let sought = self.filter.to_lowercase();
        let is_sought = |row: &&Row| {
            let texts =
                [&row.name, &row.holder, &row.note, row.purpose.as_str()].map(|text| text.to_lowercase());
            texts.iter().any(|text| text.contains(&sought))
        };
        self.rows = self.all.iter().filter(is_sought).cloned().collect();
        let name = |row: &Row| (row.name.clone(), row.purpose);
        match self.order {
            Order::Name => self.rows.sort_by_cached_key(name),
            Order::Holder => self.rows.sort_by_cached_key(|row| (row.holder.clone(), name(row))),
            Order::Age => self.rows.sort_by_cached_key(|row| (Reverse(row.held_for), name(row))),
            Order::Waiters => self.rows.sort_by_cached_key(|row| (Reverse(row.waiters), name(row))),
        }
        if self.is_reversed {
            self.rows.reverse();
        }
    }

    pub(super) fn handle(&mut self, event: &Event) -> Wish {
        let Event::Key(KeyEvent { code, modifiers, kind, .. }) = event else { return Wish::Nothing };
        if *kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        if modifiers.contains(KeyModifiers::CONTROL) && *code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        if self.is_typing {
            self.type_filter(*code);
            return Wish::Nothing;
        }
        self.press(*code)
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) => self.filter.push(c),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            _ => return,
        }
        self.arrange();
    }

    fn press(&mut self, code: KeyCode) -> Wish {
        let page = self.height.cast_signed();
        match code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc if self.detail.is_some() => self.detail = None,
            KeyCode::Enter if self.detail.is_some() => self.detail = None,
            KeyCode::Enter => return self.open_selected(),
            KeyCode::Esc => self.sift(String::new()),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('n') => self.sort(Order::Name),
            KeyCode::Char('h') => self.sort(Order::Holder),
            KeyCode::Char('a') => self.sort(Order::Age),
            KeyCode::Char('w') => self.sort(Order::Waiters),
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.arrange();
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown => self.select(page),
            KeyCode::PageUp => self.select(-page),
            KeyCode::Home => self.select(isize::MIN / 2),
            KeyCode::End => self.select(isize::MAX / 2),
            _ => {}
        }
        Wish::Nothing
    }

    fn sift(&mut self, filter: String) {
        self.filter = filter;
        self.arrange();
    }

    fn sort(&mut self, order: Order) {
        (self.order, self.is_reversed) = (order, false);
        self.arrange();
    }

    /// Selects a row so many lines further down, or the first one.
    fn select(&mut self, lines: isize) {
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let to = match self.selected() {
            Some(selected) => selected.saturating_add_signed(lines).min(last),
            None if lines > 1 => last,
            None => self.top.min(last),
        };
        self.selected = Some((self.rows[to].purpose, self.rows[to].name.clone()));
    }

    fn open_selected(&mut self) -> Wish {
        if self.selected().is_none() {
            self.select(0);
        }
        self.detail = self.selected.clone().map(|id| (id, None));
        Wish::Look
    }
}

#[cfg(test)]
pub(super) mod tests {
    use leasehold::Client;

    use super::*;

    pub(crate) fn view(count: usize) -> View {
        let mut view = View::new("redis://127.0.0.1:6379", "", true);
        view.looked = true;
        view.all = (0..count)
            .map(|n| Row {
                purpose: Purpose::Mutex,
                name: format!("machine:{n:03}"),
                holder: format!("api-{} (pid 4711)", (n * 7) % 10),
                held_for: Some(std::time::Duration::from_secs(n as u64)),
                remaining: Some(std::time::Duration::from_secs(30)),
                token: Some(1_795_810_384_123_456 + n as u64),
                waiters: (n * 3) % 7,
                note: "nightly report".to_owned(),
            })
            .collect();
        view.arrange();
        view
    }

    pub(crate) fn press(view: &mut View, keys: &[KeyCode]) -> Wish {
        let mut wish = Wish::Nothing;
        for key in keys {
            wish = view.handle(&Event::Key((*key).into()));
        }
        wish
    }

    fn names(view: &View) -> Vec<&str> {
        view.rows.iter().map(|row| &*row.name).collect()
    }

    const fn key(c: char) -> KeyCode {
        KeyCode::Char(c)
    }

    #[test]
    fn keys_sort_reverse_and_filter() {
        let mut view = view(10);
        assert_eq!(names(&view)[..2], ["machine:000", "machine:001"]);
        press(&mut view, &[key('a')]);
        assert_eq!(names(&view)[..2], ["machine:009", "machine:008"], "the oldest first");
        press(&mut view, &[key('r')]);
        assert_eq!(names(&view)[..2], ["machine:000", "machine:001"]);
        press(&mut view, &[key('w')]);
        assert_eq!(names(&view)[..2], ["machine:002", "machine:009"], "6 wait for each, and then by name");
        press(&mut view, &[key('h')]);
        assert_eq!(names(&view)[..2], ["machine:000", "machine:003"], "api-0, api-1");
        press(&mut view, &[key('n'), key('/'), key('0'), key('0'), key('7')]);
        assert_eq!(names(&view), ["machine:007"]);
        assert!(view.is_typing);
        // A letter of the filter is no command.
        assert_eq!(press(&mut view, &[key('q')]), Wish::Nothing);
        assert_eq!(names(&view), <[&str; 0]>::default());
        press(&mut view, &[KeyCode::Backspace, KeyCode::Enter]);
        assert!(!view.is_typing && names(&view) == ["machine:007"]);
        press(&mut view, &[KeyCode::Esc]);
        assert_eq!(names(&view).len(), 10);
        assert_eq!(press(&mut view, &[key('q')]), Wish::Quit);
    }

    #[test]
    fn the_selected_row_stays_selected_and_in_the_window() {
        let mut view = view(100);
        view.scroll(10);
        press(&mut view, &[KeyCode::Down]);
        assert_eq!(view.selected(), Some(0));
        press(&mut view, &[KeyCode::PageDown, KeyCode::Down, KeyCode::Down]);
        view.scroll(10);
        assert_eq!((view.selected(), view.top), (Some(12), 3));
        press(&mut view, &[key('r')]);
        view.scroll(10);
        assert_eq!((view.selected(), view.top), (Some(87), 78), "the same one");
        press(&mut view, &[KeyCode::End, KeyCode::Down]);
        view.scroll(10);
        assert_eq!((view.selected(), view.top), (Some(99), 90));
        press(&mut view, &[KeyCode::Home]);
        view.scroll(10);
        assert_eq!((view.selected(), view.top), (Some(0), 0));
        view.scroll(1000);
        assert_eq!(view.top, 0);
    }

    #[tokio::test]
    async fn a_row_is_shown_in_detail_and_a_failed_look_keeps_what_was_seen() {
        let client = Client::memory();
        let guard = client.mutex("a").unwrap().with_note("order 42").lock().await.unwrap();
        let mut view = View::new(client.store(), "", false);
        view.update(super::super::see(&client, "", None).await.map_err(|error| error.to_string()));
        assert_eq!(names(&view), ["a"]);
        assert_eq!(press(&mut view, &[KeyCode::Enter]), Wish::Look);
        assert_eq!(view.detail(), Some("looking ..."));
        let seen = super::super::see(&client, "", view.shown_in_detail()).await.unwrap();
        view.update(Ok(seen));
        let text = view.detail().unwrap();
        assert!(text.contains("order 42") && text.contains(&guard.token().to_string()), "{text}");
        view.update(Err("no answer".into()));
        assert_eq!((names(&view).len(), view.failure.as_deref()), (1, Some("no answer")));
        press(&mut view, &[KeyCode::Esc]);
        assert_eq!(view.detail(), None);
        drop(guard);
    }
}
