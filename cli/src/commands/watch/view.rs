//! What the user sees and does: rows, their order, the filter, and the row that is selected.

use std::cmp::Reverse;

use leasehold::{Error, Purpose};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::Seen;
use crate::commands::list::{self, Row};
use crate::commands::show;
use crate::find::Found;
use crate::wording;

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
pub(super) type Id = (Purpose, String);

/// What is shown instead of the table.
#[derive(Debug)]
struct InDetail {
    id: Id,
    /// None until it is known.
    text: Option<String>,
    /// The first line in the window.
    top: u16,
}

impl InDetail {
    fn text(&self) -> &str {
        self.text.as_deref().unwrap_or("looking ...")
    }

    /// Some line is always seen.
    fn scroll(&mut self, lines: isize) {
        let last = self.text().lines().count().saturating_sub(1);
        let top = usize::from(self.top).saturating_add_signed(lines).min(last);
        self.top = u16::try_from(top).unwrap_or(u16::MAX);
    }
}

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
    detail: Option<InDetail>,
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
                if let Some((id, found)) = detail {
                    self.show(&id, found);
                }
                self.arrange();
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// Another one may have been opened during the look.
    fn show(&mut self, id: &Id, found: Result<Found, Error>) {
        if let Some(shown) = self.detail.as_mut().filter(|shown| shown.id == *id) {
            shown.text = Some(match found {
                Ok(found) => show::text(&id.1, &found),
                Err(error) => wording::clean(&error.to_string()).into_owned(),
            });
            shown.scroll(0);
        }
    }

    /// How many rows there are, those that the filter keeps out included.
    pub(super) fn total(&self) -> usize {
        self.all.len()
    }

    pub(super) fn shown_in_detail(&self) -> Option<Id> {
        self.detail.as_ref().map(|shown| shown.id.clone())
    }

    /// The text of what is shown in detail, and its first line in the window.
    pub(super) fn detail(&self) -> Option<(&str, u16)> {
        self.detail.as_ref().map(|shown| (shown.text(), shown.top))
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
        list::sort(&mut self.rows);
        // Those that are equal keep their order.
        match self.order {
            Order::Name => {}
            Order::Holder => self.rows.sort_by(|a, b| a.holder.cmp(&b.holder)),
            Order::Age => self.rows.sort_by_key(|row| Reverse(row.held_for)),
            Order::Waiters => self.rows.sort_by_key(|row| Reverse(row.waiters)),
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
        match (&mut self.detail, self.is_typing) {
            (Some(_), _) => self.press_in_detail(*code),
            (None, true) => {
                self.type_filter(*code);
                Wish::Nothing
            }
            (None, false) => self.press(*code),
        }
    }

    /// The table is not seen, and left alone.
    fn press_in_detail(&mut self, code: KeyCode) -> Wish {
        let page = self.height.cast_signed();
        let Some(shown) = &mut self.detail else { return Wish::Nothing };
        match code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Esc | KeyCode::Enter => self.detail = None,
            code => {
                if let Some(lines) = movement(code, page) {
                    shown.scroll(lines);
                }
            }
        }
        Wish::Nothing
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
            code => {
                if let Some(lines) = movement(code, page) {
                    self.select(lines);
                }
            }
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

    /// Selects a row so many lines further down than the one that is selected, or else than the first in the window,
    /// which a single step selects itself.
    fn select(&mut self, lines: isize) {
        let Some(last) = self.rows.len().checked_sub(1) else { return };
        let to = match self.selected() {
            Some(selected) => selected.saturating_add_signed(lines),
            None if lines.abs() <= 1 => self.top,
            None => self.top.saturating_add_signed(lines),
        };
        let to = to.min(last);
        self.selected = Some((self.rows[to].purpose, self.rows[to].name.clone()));
    }

    fn open_selected(&mut self) -> Wish {
        if self.selected().is_none() {
            self.select(0);
        }
        self.detail = self.selected.clone().map(|id| InDetail { id, text: None, top: 0 });
        Wish::Look
    }
}

/// How many lines further down a key moves.
const fn movement(code: KeyCode, page: isize) -> Option<isize> {
    Some(match code {
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::PageDown => page,
        KeyCode::PageUp => -page,
        KeyCode::Home => isize::MIN / 2,
        KeyCode::End => isize::MAX / 2,
        _ => return None,
    })
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

    #[test]
    fn pages_and_ends_are_reached_without_a_selection() {
        for (key, selected) in [
            (KeyCode::Down, 0),
            (KeyCode::Up, 0),
            (KeyCode::PageDown, 10),
            (KeyCode::PageUp, 0),
            (KeyCode::Home, 0),
            (KeyCode::End, 99),
        ] {
            let mut view = view(100);
            view.scroll(10);
            press(&mut view, &[key]);
            assert_eq!(view.selected(), Some(selected), "{key:?}");
        }
    }

    #[tokio::test]
    async fn a_row_is_shown_in_detail_and_a_failed_look_keeps_what_was_seen() {
        let client = Client::memory();
        let guard = client.mutex("a").unwrap().with_note("order 42").lock().await.unwrap();
        let mut view = View::new(client.store(), "", false);
        view.update(super::super::see(&client, "", None).await.map_err(|error| error.to_string()));
        assert_eq!(names(&view), ["a"]);
        assert_eq!(press(&mut view, &[KeyCode::Enter]), Wish::Look);
        assert_eq!(view.detail(), Some(("looking ...", 0)));
        // A look for another one that was still under way.
        let other = super::super::see(&client, "", Some((Purpose::Mutex, "b".to_owned()))).await.unwrap();
        view.update(Ok(other));
        assert_eq!(view.detail(), Some(("looking ...", 0)));
        let seen = super::super::see(&client, "", view.shown_in_detail()).await.unwrap();
        view.update(Ok(seen));
        let (text, _) = view.detail().unwrap();
        assert!(text.contains("order 42") && text.contains(&guard.token().to_string()), "{text}");
        let last = u16::try_from(text.lines().count() - 1).unwrap();
        // The keys of the table have no effect on what is not seen.
        press(&mut view, &[key('/'), key('a'), key('r'), KeyCode::Down]);
        assert_eq!((view.is_typing, view.order, view.is_reversed), (false, Order::Name, false));
        assert_eq!(view.detail().unwrap().1, 1);
        press(&mut view, &[KeyCode::End]);
        assert_eq!(view.detail().unwrap().1, last);
        press(&mut view, &[KeyCode::Home]);
        assert_eq!((view.detail().unwrap().1, press(&mut view, &[key('q')])), (0, Wish::Quit));
        view.update(Err("no answer".into()));
        assert_eq!((names(&view).len(), view.failure.as_deref()), (1, Some("no answer")));
        press(&mut view, &[KeyCode::Esc]);
        assert_eq!(view.detail(), None);
        drop(guard);
    }
}
