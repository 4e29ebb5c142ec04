//! What the screen looks like: a line about the switch, one of views, the tables, and a line about keys or what is wrong.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

use super::screen::{KEYS, Screen};
use super::table::{Heading, Line, Table};
use super::views::View;
use crate::printable::printable;

/// Below this, nothing is readable.
const LEAST: (u16, u16) = (20, 5);

/// A measurement of this age is said to be old.
const OLD: Duration = Duration::from_secs(5);

/// Lines that are no part of the tables: two above, one below.
const AROUND: u16 = 3;

/// Draws the screen, whatever its size.
pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        write(buffer, area, 0, 0, "too small", Style::new());
        return;
    }
    let body = Rect { y: area.y + 2, height: area.height - AROUND, ..area };
    write(buffer, area, 0, 0, &about(screen), bold());
    views(buffer, area, screen);
    if screen.help {
        help(buffer, body);
    } else {
        tables(buffer, body, screen);
    }
    last_line(buffer, area, screen);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn reversed() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}

/// Writes a text at a place of an area, as much as there is room for.
fn write(buffer: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) {
    if x < area.width && y < area.height {
        buffer.set_stringn(area.x + x, area.y + y, text, usize::from(area.width - x), style);
    }
}

fn about(screen: &Screen) -> String {
    let mut text = format!("weir top - {}", printable(&screen.about));
    if let Some(measurement) = &screen.measurement {
        let total = &measurement.stats.total;
        text += &format!(
            "  {:.0} rx/s  {:.0} tx/s  {:.0} drop/s  {:.0} % busy",
            total.packets, total.sent, total.dropped, total.busy_percent
        );
    }
    text
}

/// The names of the views, the present one marked; beside them what the view is about.
fn views(buffer: &mut Buffer, area: Rect, screen: &Screen) {
    let mut x = 0;
    for (number, view) in (1..).zip(View::ALL) {
        let name = format!("{number}{}", view.name());
        let width = Span::raw(&name).width() as u16;
        let style = if view == screen.view { reversed() } else { Style::new() };
        write(buffer, area, x, 1, &name, style);
        x = x.saturating_add(width + 1);
    }
}

/// A line of the body.
enum Shown<'a> {
    Blank,
    Title(&'a str),
    Headings(&'a [Heading]),
    Line(&'a [Heading], &'a Line),
}

fn tables(buffer: &mut Buffer, area: Rect, screen: &mut Screen) {
    let tables = screen.tables();
    if tables.is_empty() {
        let waiting = if screen.connected { "measuring..." } else { "no switch yet" };
        write(buffer, area, 0, 0, waiting, Style::new());
        return;
    }
    let (mut shown, mut lines) = (Vec::new(), Vec::new());
    for (number, table) in tables.iter().enumerate() {
        if number > 0 {
            shown.push(Shown::Blank);
        }
        shown.push(Shown::Title(&table.title));
        shown.push(Shown::Headings(&table.headings));
        for line in &table.lines {
            lines.push(shown.len());
            shown.push(Shown::Line(&table.headings, line));
        }
    }
    // Lines may have gone since the choice.
    screen.selected = screen.selected.min(lines.len().saturating_sub(1));
    let chosen = lines.get(screen.selected).copied();
    // Title and headings of a single table stay.
    let fixed = if tables.len() == 1 { 2 } else { 0 };
    let height = usize::from(area.height);
    screen.page = height.saturating_sub(fixed).max(1);
    let first = match chosen {
        // Up to the headings of the first table, too.
        Some(chosen) if chosen >= height => chosen + 1 - screen.page,
        _ => fixed,
    };
    let sorted = if tables.len() == 1 { screen.sorted_by() } else { None };
    let rows = shown[..fixed.min(shown.len())].iter().chain(shown.iter().skip(first.max(fixed)));
    for (y, row) in (0..area.height).zip(rows) {
        match row {
            Shown::Blank => {}
            Shown::Title(title) => write(buffer, area, 0, y, &printable(title), bold()),
            Shown::Headings(headings) => heading_line(buffer, area, y, headings, sorted),
            Shown::Line(headings, line) => {
                let is_chosen = chosen.is_some_and(|at| std::ptr::eq(&shown[at], row));
                let style = if is_chosen { reversed() } else { Style::new() };
                table_line(buffer, area, y, headings, line, screen.shift, style);
            }
        }
    }
    more(buffer, area, &tables, screen.selected);
}

/// The places of columns: all but the last one have their width, and the last one has the rest.
fn columns(area: Rect, headings: &[Heading]) -> impl Iterator<Item = (u16, u16, &Heading)> {
    let mut x = 0u16;
    headings.iter().enumerate().map(move |(number, heading)| {
        let is_last = number + 1 == headings.len();
        let width =
            if is_last && !heading.right { area.width.saturating_sub(x).max(heading.width) } else { heading.width };
        let place = (x, width, heading);
        x = x.saturating_add(width).saturating_add(1);
        place
    })
}

/// Writes into a column.
fn cell(buffer: &mut Buffer, area: Rect, y: u16, (x, width, heading): (u16, u16, &Heading), text: &str, style: Style) {
    let needed = Span::raw(text).width().min(usize::from(width)) as u16;
    let x = if heading.right { x + width - needed } else { x };
    let within = Rect { width: area.width.min(x.saturating_add(needed)), ..area };
    write(buffer, within, x, y, text, style);
}

fn heading_line(buffer: &mut Buffer, area: Rect, y: u16, headings: &[Heading], sorted: Option<(usize, bool)>) {
    for (number, place) in columns(area, headings).enumerate() {
        let style = match sorted {
            Some((column, _)) if column == number => bold().add_modifier(Modifier::REVERSED),
            _ => bold().add_modifier(Modifier::UNDERLINED),
        };
        cell(buffer, area, y, place, place.2.text, style);
    }
}

fn table_line(buffer: &mut Buffer, area: Rect, y: u16, headings: &[Heading], line: &Line, shift: usize, style: Style) {
    if style != Style::new() {
        write(buffer, area, 0, y, &" ".repeat(area.width.into()), style);
    }
    for ((number, place), text) in columns(area, headings).enumerate().zip(&line.cells) {
        let is_last = number + 1 == headings.len();
        match text.char_indices().nth(shift) {
            Some((at, _)) if is_last && !place.2.right => cell(buffer, area, y, place, &text[at..], style),
            None if is_last && !place.2.right => {}
            _ => cell(buffer, area, y, place, text, style),
        }
    }
}

/// How many lines there are, where they don't fit.
fn more(buffer: &mut Buffer, area: Rect, tables: &[Table], selected: usize) {
    let lines: usize = tables.iter().map(|table| table.lines.len()).sum();
    if lines + 3 * tables.len() > usize::from(area.height) {
        let text = format!(" {} of {lines} ", selected + 1);
        let x = area.width.saturating_sub(text.len() as u16);
        write(buffer, area, x, 0, &text, bold());
    }
}

fn help(buffer: &mut Buffer, area: Rect) {
    write(buffer, area, 0, 0, "Keys", bold());
    for (y, (keys, what)) in (1..).zip(KEYS) {
        write(buffer, area, 1, y, keys, bold());
        write(buffer, area, 28, y, what, Style::new());
    }
    let last = KEYS.len() as u16 + 2;
    let text = "Rates are by second. Columns, and what to do about them: docs/top.md";
    write(buffer, area, 1, last, text, Style::new());
}

fn last_line(buffer: &mut Buffer, area: Rect, screen: &Screen) {
    let y = area.height - 1;
    if screen.typing {
        return write(buffer, area, 0, y, &format!("/{}_", printable(&screen.filter)), Style::new());
    }
    if let Some(problem) = &screen.problem {
        let text = if screen.connected { printable(problem) } else { format!("no answer: {}", printable(problem)) };
        return write(buffer, area, 0, y, &text, reversed());
    }
    if screen.age >= OLD {
        let text = format!("no answer for {} s; waiting", screen.age.as_secs());
        return write(buffer, area, 0, y, &text, reversed());
    }
    let mut text = screen.title();
    if screen.paused {
        text += "  PAUSED";
    }
    if !screen.filter.is_empty() {
        text += &format!("  /{}", printable(&screen.filter));
    }
    write(buffer, area, 0, y, &text, Style::new());
    let keys = " ?help q:end";
    let x = area.width.saturating_sub(keys.len() as u16);
    write(buffer, area, x, y, keys, Style::new());
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    use super::super::screen::tests::{press, screen};
    use super::*;

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        let cells = terminal.backend().buffer().content().chunks(width.max(1).into());
        cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    /// Keys that lead to every view, into it and to the help.
    const EVERYWHERE: &[&[KeyCode]] = &[
        &[KeyCode::Char('1')],
        &[KeyCode::Enter],
        &[KeyCode::Char('2')],
        &[KeyCode::Char('3')],
        &[KeyCode::Char('4')],
        &[KeyCode::Right, KeyCode::Right],
        &[KeyCode::Enter, KeyCode::End],
        &[KeyCode::Char('5')],
        &[KeyCode::Enter],
        &[KeyCode::Char('6')],
        &[KeyCode::Char('7')],
        &[KeyCode::Char('8'), KeyCode::End],
        &[KeyCode::Char('?')],
        &[KeyCode::Char('x'), KeyCode::Char('/'), KeyCode::Char('z')],
    ];

    #[test]
    fn every_view_is_drawn_at_every_size() {
        for (width, height) in [(80, 24), (40, 10), (200, 60), (20, 5), (19, 4), (1, 1), (0, 0), (500, 2), (3, 200)] {
            let mut screen = screen();
            for keys in EVERYWHERE {
                press(&mut screen, keys);
                let rows = drawn(&mut screen, width, height);
                assert!(rows.iter().all(|row| !row.contains(['\x1b', '\u{9b}'])), "{rows:?}");
            }
        }
    }

    #[test]
    fn eighty_columns_have_what_matters() {
        let mut screen = screen();
        let rows = drawn(&mut screen, 80, 24);
        assert!(rows[0].starts_with("weir top - weir 0.1.0"), "{rows:#?}");
        assert!(rows[1].starts_with("1ports 2workers 3queues 4flows 5rules 6drops 7connections 8upcalls"), "{rows:#?}");
        assert!(rows[3].starts_with("port            link       rx/s rx bit/s   tx/s"), "{rows:#?}");
        assert!(rows[4].starts_with("eth1            up          5.0"), "{rows:#?}");
        assert!(rows[5].starts_with("evil?[2J?"), "{rows:#?}");
        assert!(rows[23].ends_with("?help q:end"), "{rows:#?}");
        press(&mut screen, &[KeyCode::Char('?')]);
        let rows = drawn(&mut screen, 80, 24);
        for (keys, what) in KEYS {
            assert!(rows.iter().any(|row| row.contains(keys) && row.ends_with(what)), "{keys}: {rows:#?}");
        }
    }

    #[test]
    fn the_chosen_line_is_always_on_the_screen() {
        let mut screen = screen();
        let ports: Vec<_> = (0..100)
            .map(|n| crate::report::measurement::PortRates { name: format!("port{n:03}"), ..Default::default() })
            .collect();
        let many = crate::report::measurement::Measurement { ports, ..Default::default() };
        for (selected, height) in [(0, 10), (3, 10), (4, 10), (5, 10), (50, 10), (99, 10), (99, 24), (500, 24)] {
            screen.show(many.clone(), screen.wanted(), None);
            screen.selected = selected;
            let rows = drawn(&mut screen, 80, height);
            let name = format!("port{:03}", selected.min(99));
            assert!(rows.iter().any(|row| row.starts_with(&name)), "{selected} {height}: {rows:#?}");
            assert!(rows[3].starts_with("port  "), "headings stay: {rows:#?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut screen = screen();
        screen.lose("cannot connect: No such file\x1b[31m".into());
        let rows = drawn(&mut screen, 80, 24);
        assert!(rows[23].starts_with("no answer: cannot connect: No such file?[31m"), "{rows:#?}");
        assert!(rows[4].starts_with("eth1"), "the last measurement stays: {rows:#?}");
    }
}
