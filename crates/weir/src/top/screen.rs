//! What is on the screen, and what keys do to it.

use std::collections::HashMap;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::table::{Table, Target};
use super::views::{self, Scope, View};
use crate::printable::printable;
use crate::report::measurement::Measurement;

/// Rows of rankings that are asked for: some screens.
const MOST: usize = 100;

/// Most characters of a filter.
const MAX_FILTER: usize = 64;

/// The keys and what they do, for the help.
pub const KEYS: &[(&str, &str)] = &[
    ("1-8, Tab", "choose a view"),
    ("Up Down PgUp PgDn Home End", "choose a line (j, k)"),
    ("Enter", "what belongs to a port or rule; else the whole text"),
    ("Esc, Backspace", "back"),
    ("< >", "sort by the column before, behind"),
    ("r", "sort the other way round"),
    ("b", "flows and rules by bytes or by packets"),
    ("/", "show only lines with some words; Esc ends it"),
    ("Left Right", "move the last column"),
    ("Space", "pause, go on"),
    ("?", "this help"),
    ("q, Ctrl-C", "end"),
];

/// What is to be asked of `weir/top`, besides the other reports: the arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Arguments for flows.
    pub flows: Option<Vec<String>>,
    /// Arguments for rules.
    pub rules: Option<Vec<String>>,
    /// Arguments for drops.
    pub drops: Option<Vec<String>>,
}

impl Wanted {
    /// All rankings, with so many rows each.
    pub fn all(most: usize) -> Wanted {
        let words = |subject| Some(question(subject, most));
        Wanted { flows: words("flows"), rules: words("rules"), drops: words("drops") }
    }
}

fn question(subject: &str, most: usize) -> Vec<String> {
    vec![subject.to_owned(), format!("most={most}")]
}

/// A place to go back to.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    view: View,
    scope: Scope,
    selected: usize,
}

/// What is on the screen.
#[derive(Debug)]
pub struct Screen {
    /// The view.
    pub view: View,
    /// What it is about.
    pub scope: Scope,
    back: Vec<Place>,
    /// Column and direction, for each view that was sorted.
    sorted: HashMap<View, (usize, bool)>,
    /// Only lines with this are shown.
    pub filter: String,
    /// Whether the filter is being typed.
    pub typing: bool,
    /// Number of the chosen line.
    pub selected: usize,
    /// How far the last column is moved.
    pub shift: usize,
    by_bytes: bool,
    /// Nothing new is shown.
    pub paused: bool,
    /// The help is shown.
    pub help: bool,
    /// What is shown.
    pub measurement: Option<Measurement>,
    /// What the rankings in it were asked for.
    asked: Wanted,
    /// What went wrong: the switch does not answer, or one question has no answer.
    pub problem: Option<String>,
    /// Whether the switch is there.
    pub connected: bool,
    /// Which switch it is.
    pub about: String,
    /// How old the measurement is.
    pub age: Duration,
    /// Lines that fit, as they were drawn last.
    pub page: usize,
}

impl Default for Screen {
    fn default() -> Screen {
        Screen {
            view: View::Ports,
            scope: Scope::All,
            back: Vec::new(),
            sorted: HashMap::new(),
            filter: String::new(),
            typing: false,
            selected: 0,
            shift: 0,
            by_bytes: false,
            paused: false,
            help: false,
            measurement: None,
            asked: Wanted::default(),
            problem: None,
            connected: false,
            about: String::new(),
            age: Duration::ZERO,
            page: 1,
        }
    }
}

impl Screen {
    /// What has to be asked for this screen.
    pub fn wanted(&self) -> Wanted {
        let words = |subject: &str, with: Vec<String>| Some([question(subject, MOST), with].concat());
        let by = || if self.by_bytes { vec!["by=bytes".to_owned()] } else { Vec::new() };
        match (&self.scope, self.view) {
            (Scope::Port(port), _) => Wanted {
                flows: words("flows", [by(), vec![format!("port={port}")]].concat()),
                drops: words("drops", vec![format!("port={port}")]),
                ..Wanted::default()
            },
            (Scope::Text(_), _) => Wanted::default(),
            (Scope::Rule { rule, .. }, _) => {
                Wanted { flows: words("flows", [by(), vec![format!("rule={rule}")]].concat()), ..Wanted::default() }
            }
            (Scope::All, View::Flows) => Wanted { flows: words("flows", by()), ..Wanted::default() },
            (Scope::All, View::Rules) => Wanted { rules: words("rules", by()), ..Wanted::default() },
            (Scope::All, View::Drops) => Wanted { drops: words("drops", Vec::new()), ..Wanted::default() },
            (Scope::All, _) => Wanted::default(),
        }
    }

    /// Shows a new measurement, whose rankings were asked for by `asked`.
    pub fn show(&mut self, measurement: Measurement, asked: Wanted, problem: Option<String>) {
        self.connected = true;
        if !self.paused {
            (self.measurement, self.asked, self.problem) = (Some(measurement), asked, problem);
        }
    }

    /// Says that the switch does not answer.
    pub fn lose(&mut self, problem: String) {
        (self.connected, self.problem) = (false, Some(problem));
    }

    /// The tables that are shown. Rankings of another question are not.
    pub fn tables(&self) -> Vec<Table> {
        let Some(measurement) = &self.measurement else { return Vec::new() };
        let mut measurement = measurement.clone();
        let wanted = self.wanted();
        let is_same = |wanted: &Option<Vec<String>>, asked: &Option<Vec<String>>| wanted.is_some() && wanted == asked;
        measurement.flows = measurement.flows.filter(|_| is_same(&wanted.flows, &self.asked.flows));
        measurement.rules = measurement.rules.filter(|_| is_same(&wanted.rules, &self.asked.rules));
        measurement.drops = measurement.drops.filter(|_| is_same(&wanted.drops, &self.asked.drops));
        let mut tables = views::tables(self.view, &self.scope, &measurement);
        for table in &mut tables {
            if !self.filter.is_empty() {
                table.retain(&self.filter);
            }
        }
        if let (Some(&(column, reverse)), [table]) = (self.sorted.get(&self.view), &mut tables[..]) {
            table.sort(column, reverse);
        }
        tables
    }

    /// The column that the table is sorted by, and whether the other way round.
    pub fn sorted_by(&self) -> Option<(usize, bool)> {
        self.sorted.get(&self.view).copied()
    }

    /// What the screen is about, for the first line.
    pub fn title(&self) -> String {
        match &self.scope {
            Scope::All => self.view.name().into(),
            Scope::Port(port) => format!("port {}", printable(port)),
            Scope::Rule { text, .. } => format!("rule {}", printable(text)),
            Scope::Text(_) => self.view.name().into(),
        }
    }

    /// Does what a key says. False when that is to end.
    pub fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return false,
            _ if self.help => self.help = false,
            code if self.typing => self.type_filter(code),
            KeyCode::Char('q') => return false,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('/') => (self.typing, self.selected) = (true, 0),
            KeyCode::Char(digit @ '1'..='8') => self.choose(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Tab => self.choose(self.neighbour(1)),
            KeyCode::BackTab => self.choose(self.neighbour(View::ALL.len() - 1)),
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected.saturating_add(1)),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(self.page),
            KeyCode::PageDown => self.select(self.selected.saturating_add(self.page)),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Left => self.shift = self.shift.saturating_sub(10),
            KeyCode::Right => self.shift = (self.shift + 10).min(4096),
            KeyCode::Enter => self.enter(),
            KeyCode::Esc | KeyCode::Backspace => self.leave(),
            KeyCode::Char('<') => self.sort_by(-1),
            KeyCode::Char('>') => self.sort_by(1),
            KeyCode::Char('r') => self.reverse(),
            KeyCode::Char('b') => self.by_bytes = !self.by_bytes,
            KeyCode::Char(' ') => self.paused = !self.paused,
            _ => {}
        }
        true
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < MAX_FILTER => self.filter.push(c),
            _ => {}
        }
        self.selected = 0;
    }

    fn choose(&mut self, view: View) {
        self.back.clear();
        self.filter.clear();
        (self.view, self.scope, self.selected, self.shift) = (view, Scope::All, 0, 0);
    }

    fn neighbour(&self, by: usize) -> View {
        let at = View::ALL.iter().position(|view| *view == self.view).unwrap_or(0);
        View::ALL[(at + by) % View::ALL.len()]
    }

    fn count(&self) -> usize {
        self.tables().iter().map(|table| table.lines.len()).sum()
    }

    fn select(&mut self, line: usize) {
        self.selected = line.min(self.count().saturating_sub(1));
    }

    fn enter(&mut self) {
        let target = self.tables().into_iter().flat_map(|table| table.lines).nth(self.selected).and_then(|l| l.target);
        let (view, scope) = match target {
            Some(Target::Port(port)) => (self.view, Scope::Port(port)),
            Some(Target::Rule { rule, text }) => (View::Flows, Scope::Rule { rule, text }),
            Some(Target::Text(text)) => (self.view, Scope::Text(text)),
            None => return,
        };
        self.back.push(Place { view: self.view, scope: self.scope.clone(), selected: self.selected });
        self.filter.clear();
        (self.view, self.scope, self.selected, self.shift) = (view, scope, 0, 0);
    }

    fn leave(&mut self) {
        if !self.filter.is_empty() {
            self.filter.clear();
        } else if let Some(Place { view, scope, selected }) = self.back.pop() {
            (self.view, self.scope, self.selected, self.shift) = (view, scope, selected, 0);
        }
    }

    fn sort_by(&mut self, step: isize) {
        let columns = self.tables().first().map_or(0, |table| table.headings.len());
        if columns == 0 {
            return;
        }
        let column = match self.sorted.get(&self.view) {
            Some(&(column, _)) => (column as isize + step).rem_euclid(columns as isize) as usize,
            None if step > 0 => 0,
            None => columns - 1,
        };
        self.sorted.insert(self.view, (column, false));
    }

    fn reverse(&mut self) {
        let (_, reverse) = self.sorted.entry(self.view).or_insert((0, false));
        *reverse = !*reverse;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::drops::DropRow;
    use crate::report::measurement::PortRates;
    use crate::report::ranking::{Ranking, TopDrop, TopFlow, TopRule, Traffic};

    /// A measurement with three ports, of which one has a name that is hostile, and rankings with long texts.
    pub fn measurement() -> Measurement {
        let port = |name: &str, rx_packets| PortRates {
            name: name.into(),
            link: "up".into(),
            rx_packets,
            ..PortRates::default()
        };
        let traffic = |packets| Traffic { packets_per_s: packets as f64, packets, ..Traffic::default() };
        let rule = |priority: u16| TopRule {
            traffic: traffic(priority.into()),
            bridge: "br0".into(),
            id: format!("0:{priority}:1"),
            priority,
            text: format!("cookie=0x0, table=0, priority={priority},ip actions=output:2"),
            ..TopRule::default()
        };
        let flow =
            |port: &str| TopFlow { port: port.into(), text: "in_port(1), actions:2".repeat(99), ..TopFlow::default() };
        let drop = TopDrop { packets_per_s: 3.0, row: DropRow { reason: "rule".into(), ..DropRow::default() } };
        Measurement {
            ports: vec![port("eth1", 5.0), port("evil\x1b[2J\u{9b}", 9.0), port("vm1", 1.0)],
            flows: Some(Ranking { interval_s: 1.0, of: 2, rows: vec![flow("eth1"), flow("vm1")] }),
            rules: Some(Ranking { interval_s: 1.0, of: 2, rows: vec![rule(9), rule(7)] }),
            drops: Some(Ranking { interval_s: 1.0, of: 1, rows: vec![drop] }),
            ..Measurement::default()
        }
    }

    /// A screen with this measurement, as if it had asked for all of it.
    pub fn screen() -> Screen {
        let mut screen = Screen { about: "weir 0.1.0".into(), ..Screen::default() };
        give(&mut screen);
        screen
    }

    pub fn give(screen: &mut Screen) {
        screen.show(measurement(), screen.wanted(), None);
    }

    pub fn press(screen: &mut Screen, keys: &[KeyCode]) {
        for key in keys {
            assert!(screen.press(KeyEvent::from(*key)), "{key:?} ends it");
            give(screen);
        }
    }

    fn first_cells(screen: &Screen) -> Vec<String> {
        screen.tables().iter().flat_map(|t| t.lines.iter().map(|line| line.cells[0].clone())).collect()
    }

    #[test]
    fn sorting_and_filtering() {
        let mut screen = screen();
        assert_eq!(first_cells(&screen), ["eth1", "evil?[2J?", "vm1"]);
        press(&mut screen, &[KeyCode::Char('>'), KeyCode::Char('>'), KeyCode::Char('>')]);
        assert_eq!(screen.sorted_by(), Some((2, false)));
        assert_eq!(first_cells(&screen), ["evil?[2J?", "eth1", "vm1"]);
        press(&mut screen, &[KeyCode::Char('r')]);
        assert_eq!(first_cells(&screen), ["vm1", "eth1", "evil?[2J?"]);
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('V'), KeyCode::Char('m'), KeyCode::Enter]);
        assert_eq!(first_cells(&screen), ["vm1"]);
        press(&mut screen, &[KeyCode::Esc]);
        assert_eq!(first_cells(&screen).len(), 3);
    }

    #[test]
    fn drilling_down_and_back() {
        let mut screen = screen();
        press(&mut screen, &[KeyCode::End, KeyCode::Enter]);
        assert_eq!(screen.scope, Scope::Port("vm1".into()));
        let wanted = screen.wanted();
        assert!(
            wanted.flows.unwrap().contains(&"port=vm1".into()) && wanted.drops.unwrap().contains(&"port=vm1".into())
        );
        press(&mut screen, &[KeyCode::Esc]);
        assert_eq!((&screen.scope, screen.selected), (&Scope::All, 2));
        press(&mut screen, &[KeyCode::Char('5'), KeyCode::Down, KeyCode::Enter]);
        assert_eq!(screen.wanted().flows.unwrap()[2..], ["rule=br0/0:7:1"]);
        assert!(screen.title().contains("priority=7,ip"), "{}", screen.title());
        press(&mut screen, &[KeyCode::Enter]);
        assert!(matches!(&screen.scope, Scope::Text(text) if text.contains("in_port(1)")), "{:?}", screen.scope);
        press(&mut screen, &[KeyCode::Backspace, KeyCode::Backspace]);
        assert_eq!((screen.view, &screen.scope, screen.selected), (View::Rules, &Scope::All, 1));
    }

    #[test]
    fn rankings_of_another_question_are_not_shown() {
        let mut screen = Screen { view: View::Flows, ..Screen::default() };
        screen.show(measurement(), Wanted::default(), None);
        assert_eq!(screen.tables()[0].title, "datapath flows (measuring)");
        give(&mut screen);
        assert_eq!(screen.tables()[0].title, "datapath flows (2 of 2)");
        assert!(screen.press(KeyEvent::from(KeyCode::Char('b'))));
        assert_eq!(screen.tables()[0].title, "datapath flows (measuring)");
    }

    #[test]
    fn what_comes_while_paused_is_not_shown() {
        let mut screen = screen();
        press(&mut screen, &[KeyCode::Char(' ')]);
        screen.show(Measurement::default(), Wanted::default(), None);
        assert_eq!(first_cells(&screen).len(), 3);
    }

    #[test]
    fn it_ends_by_q_and_control_c_but_not_while_typing() {
        let mut screen = screen();
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('q')]);
        assert_eq!(screen.filter, "q");
        assert!(!screen.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        press(&mut screen, &[KeyCode::Esc, KeyCode::Char('?'), KeyCode::Char('q')]);
        assert!(!screen.help && !screen.press(KeyEvent::from(KeyCode::Char('q'))));
    }
}
