//! Paints the view: a title, the table or one of its rows in detail, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState, Wrap};

use super::view::View;
use crate::commands::list::Row;
use crate::wording;

/// A column: its header, the number of its cell, its width, and from which width of the window on it is shown.
struct Column {
    header: &'static str,
    cell: usize,
    width: Constraint,
    is_number: bool,
    from: u16,
}

const fn column(header: &'static str, cell: usize, width: Constraint, is_number: bool, from: u16) -> Column {
    Column { header, cell, width, is_number, from }
}

/// What matters most at three o'clock in the morning remains in the narrowest window.
const COLUMNS: [Column; 8] = [
    column("NAME", 0, Constraint::Fill(3), false, 0),
    column("KIND", 1, Constraint::Length(18), false, 90),
    column("HELD BY", 2, Constraint::Fill(3), false, 0),
    column("FOR", 3, Constraint::Length(6), true, 0),
    column("ENDS IN", 4, Constraint::Length(7), true, 60),
    column("TOKEN", 5, Constraint::Length(20), true, 120),
    column("WAIT", 6, Constraint::Length(5), true, 30),
    column("NOTE", 7, Constraint::Fill(2), false, 75),
];

pub(super) fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let rows = Layout::vertical([Constraint::Length(2), Constraint::Min(1), Constraint::Length(1)]);
    let [title, body, keys] = rows.areas(frame.area());
    let styles = Styles::new(view.has_color);
    frame.render_widget(Paragraph::new(title_lines(view, &styles)), title);
    match view.detail() {
        Some((text, top)) => {
            let text = Paragraph::new(text).wrap(Wrap { trim: false }).scroll((top, 0));
            frame.render_widget(text, body);
        }
        None => draw_table(frame, body, view, &styles),
    }
    frame.render_widget(Paragraph::new(keys_line(view, keys.width)).style(styles.dim), keys);
}

/// Colors, or what does without.
struct Styles {
    header: Style,
    dim: Style,
    bad: Style,
    selected: Style,
    awaited: Style,
}

impl Styles {
    fn new(has_color: bool) -> Self {
        let plain = Style::new();
        let colored = |color| if has_color { plain.fg(color) } else { plain };
        Self {
            header: colored(Color::Cyan).add_modifier(Modifier::BOLD),
            dim: plain.add_modifier(Modifier::DIM),
            bad: colored(Color::Red).add_modifier(Modifier::BOLD),
            selected: plain.add_modifier(Modifier::REVERSED),
            awaited: colored(Color::Yellow),
        }
    }
}

fn title_lines(view: &View, styles: &Styles) -> Vec<Line<'static>> {
    let count = match (view.looked, view.rows.len(), view.total()) {
        (false, ..) => "looking ...".to_owned(),
        (_, shown, total) if shown < total => format!("{shown} of {total} held or awaited"),
        (_, _, total) => format!("{total} held or awaited"),
    };
    let prefix = if view.prefix.is_empty() {
        String::new()
    } else {
        format!(", prefix {}", wording::clean(&view.prefix))
    };
    let first = Line::from(format!("{count}{prefix}  {}", view.store)).style(styles.header);
    let second = match (&view.away, &view.failure) {
        (Some(away), _) => Line::from(away.clone()).style(styles.bad),
        (None, Some(failure)) => Line::from(failure.clone()).style(styles.bad),
        (None, None) if view.is_typing || !view.filter.is_empty() => {
            let cursor = if view.is_typing { "_" } else { "" };
            Line::from(format!("filter: {}{cursor}", view.filter))
        }
        (None, None) => {
            let reversed = if view.is_reversed { ", reversed" } else { "" };
            Line::from(format!("by {}{reversed}", view.order.text())).style(styles.dim)
        }
    };
    vec![first, second]
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, view: &mut View, styles: &Styles) {
    view.scroll(usize::from(area.height.saturating_sub(1)));
    let columns: Vec<_> = COLUMNS.iter().filter(|column| area.width >= column.from).collect();
    let seen = view.rows.iter().skip(view.top).take(view.height);
    let rows = seen.map(|row| table_row(row, &columns, styles));
    let header = columns.iter().map(|column| cell(column.header, column));
    let table = Table::new(rows, columns.iter().map(|column| column.width))
        .header(TableRow::new(header).style(styles.header))
        .row_highlight_style(if view.away.is_some() { styles.dim } else { styles.selected });
    // What is gone from the window is not painted, so rows are counted from the top of it.
    let selected = view.selected().and_then(|selected| selected.checked_sub(view.top));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

fn table_row(row: &Row, columns: &[&Column], styles: &Styles) -> TableRow<'static> {
    let cells = row.cells();
    let cells = columns.iter().map(|column| cell(&cells[column.cell], column)).collect::<Vec<_>>();
    TableRow::new(cells).style(if row.waiters > 0 { styles.awaited } else { Style::new() })
}

fn cell(text: &str, column: &Column) -> Cell<'static> {
    let line = Line::from(text.to_owned());
    Cell::new(if column.is_number { line.right_aligned() } else { line })
}

fn keys_line(view: &View, width: u16) -> &'static str {
    match (view.detail().is_some(), view.is_typing, width) {
        (true, ..) => "esc back  arrows scroll  q quit",
        (_, true, _) => "enter keep  esc clear",
        (.., 0..70) => "q quit / filter enter show nhaw r sort",
        _ => "q quit   / filter   enter show   sort by: n name, h holder, a age, w waiters   r reverse",
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::super::view::tests::{press, view};
    use super::*;

    fn painted(view: &mut View, width: u16, height: u16) -> (Vec<String>, bool) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let has_color =
            buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        ((0..height).map(line).collect(), has_color)
    }

    #[test]
    fn a_narrow_window_keeps_the_name_the_holder_the_age_and_the_waiters() {
        let mut view = view(50);
        for (width, there, not_there) in [
            (160, &["NAME", "KIND", "HELD BY", "FOR", "ENDS IN", "TOKEN", "WAIT", "NOTE"][..], &[][..]),
            (80, &["NAME", "HELD BY", "FOR", "ENDS IN", "WAIT", "NOTE"], &["KIND", "TOKEN"]),
            (40, &["NAME", "HELD BY", "FOR", "WAIT"], &["KIND", "TOKEN", "NOTE", "ENDS"]),
            (20, &["NAME", "HELD", "FOR"], &["WAIT"]),
        ] {
            let (lines, _) = painted(&mut view, width, 10);
            assert!(there.iter().all(|text| lines[2].contains(text)), "{width}: {lines:#?}");
            assert!(!not_there.iter().any(|text| lines[2].contains(text)), "{width}: {lines:#?}");
        }
        let (lines, _) = painted(&mut view, 40, 10);
        assert!(lines[3].starts_with("machine:000") && lines[3].contains("api-0"), "{lines:#?}");
        // No window is too small.
        for (width, height) in [(1, 1), (3, 2), (10, 3)] {
            painted(&mut view, width, height);
        }
    }

    #[test]
    fn without_color_there_is_none_and_bad_news_are_in_the_title() {
        let mut view = view(5);
        assert!(painted(&mut view, 80, 10).1);
        view.has_color = false;
        view.away = Some("disconnected since 2026-11-27T20:13:04Z (12 s): refused".to_owned());
        press(&mut view, &[KeyCode::Down]);
        let (lines, has_color) = painted(&mut view, 80, 10);
        assert!(!has_color);
        assert!(lines[1].starts_with("disconnected since"), "{lines:#?}");
        assert!(lines[3].starts_with("machine:000"), "what was known: {lines:#?}");
    }
}
