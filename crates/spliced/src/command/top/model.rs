//! What `spliced top` knows and shows, and what keys and answers make of it. It does no I/O.

use std::iter::once;
use std::time::{Duration, SystemTime};

use clap::ValueEnum as _;
use ratatui_core::layout::Size;

use super::super::processes::Of;
use super::super::rated::{Rated, sort};
use super::asker::News;
use super::cursor::{Cursor, Move};
use super::dialog::{Dialog, Prompt};
use super::engines::{Share, shares};
use super::key::Key;
use super::known::{Known, ServerOf};
use super::layout::Layout;
use super::order::{Change, Order, Place, What};
use crate::session_args::{SessionOrder, TopArgs};
use crate::session_filter::{SessionField, SessionFilter};
use crate::weight::WEIGHT_MOST;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Sessions,
    Backends,
    Engines,
}

impl Page {
    pub(super) const ALL: [Self; 3] = [Self::Sessions, Self::Backends, Self::Engines];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sessions => "Sessions",
            Self::Backends => "Backends",
            Self::Engines => "Engines",
        }
    }

    /// The page so many places further on, in a circle.
    fn after(self, places: usize) -> Self {
        Self::ALL[(self as usize + places) % Self::ALL.len()]
    }
}

/// What only the terminal or the asker can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Suspend,
    Redraw,
    Order(Order),
}

/// The rows of a page by what is the same while they move.
pub(super) type RowName = (String, String, String);

#[derive(Debug)]
pub(super) struct Model {
    pub(super) known: Known,
    pub(super) page: Page,
    pub(super) order: SessionOrder,
    pub(super) is_reversed: bool,
    pub(super) filters: Vec<SessionFilter>,
    pub(super) dialog: Option<Dialog>,
    /// What has become of the last order.
    pub(super) message: Option<String>,
    pub(super) is_paused: bool,
    pub(super) delay: Duration,
    /// Whether processes have been looked for.
    pub(super) has_searched: bool,
    /// When the last answer came.
    pub(super) now: SystemTime,
    /// How many orders there is no answer to yet.
    pub(super) orders: usize,
    size: Size,
    searched_text: String,
    sessions: Cursor<(Of, u64)>,
    others: [Cursor<RowName>; 2],
}

impl Model {
    pub(super) fn new(args: &TopArgs, now: SystemTime) -> Self {
        Self {
            known: Known::default(),
            page: Page::Sessions,
            order: args.sort,
            is_reversed: false,
            filters: args.filter.clone(),
            dialog: None,
            message: None,
            is_paused: false,
            delay: args.delay,
            has_searched: false,
            now,
            orders: 0,
            size: Size::default(),
            searched_text: String::new(),
            sessions: Cursor::default(),
            others: Default::default(),
        }
    }

    /// The terminal has this size now.
    pub(super) fn resize(&mut self, size: Size) {
        self.size = size;
        self.settle();
    }

    pub(super) fn news(&mut self, news: News, now: SystemTime) {
        match news {
            News::Searched => self.has_searched = true,
            News::Ordered(what, result) => {
                self.orders -= 1;
                self.message = Some(match result {
                    Ok(None) => what.done(),
                    Ok(Some(why)) => format!("{}; new clients get no server: {why}", what.done()),
                    Err(why) => why,
                });
            }
            _ if self.is_paused => return,
            news => {
                self.known.learn(news);
                self.now = now;
            }
        }
        self.settle();
    }

    pub(super) fn key(&mut self, key: Key) -> Option<Action> {
        match key {
            Key::Control('c') => return Some(Action::Quit),
            Key::Control('l') => return Some(Action::Redraw),
            Key::Control('z') => return Some(Action::Suspend),
            _ => {}
        }
        let action = match self.dialog.take() {
            None => self.key_of_page(key),
            Some(dialog) => self.key_of_dialog(dialog, key),
        };
        self.settle();
        action
    }

    pub(super) fn layout(&self) -> Layout {
        Layout::of(self.size, !self.known.notices().is_empty())
    }

    /// Those that are shown, in their order.
    pub(super) fn sessions(&self) -> Vec<&Rated> {
        let is_shown = |one: &&Rated| self.filters.iter().all(|filter| filter.takes(&one.row));
        let mut sessions: Vec<_> = self.known.sessions().filter(is_shown).collect();
        sort(&mut sessions, self.order);
        if self.is_reversed {
            sessions.reverse();
        }
        sessions
    }

    pub(super) fn servers(&self) -> Vec<ServerOf<'_>> {
        self.known.servers().collect()
    }

    pub(super) fn shares(&self) -> Vec<Share> {
        shares(&self.sessions())
    }

    /// The row that is selected, and the first one that is shown.
    pub(super) fn rows(&self) -> (usize, usize) {
        match self.page {
            Page::Sessions => (self.sessions.row(), self.sessions.first_shown()),
            page => {
                let cursor = &self.others[page as usize - 1];
                (cursor.row(), cursor.first_shown())
            }
        }
    }

    fn key_of_page(&mut self, key: Key) -> Option<Action> {
        self.message = None;
        let page = isize::try_from(self.layout().list.height)
            .unwrap_or(1)
            .max(1);
        match key {
            Key::Char('q') | Key::Function(10) => return Some(Action::Quit),
            Key::Up => self.go(Move::By(-1)),
            Key::Down => self.go(Move::By(1)),
            Key::PageUp => self.go(Move::By(-page)),
            Key::PageDown => self.go(Move::By(page)),
            Key::Home => self.go(Move::First),
            Key::End => self.go(Move::Last),
            Key::Tab | Key::Right => self.page = self.page.after(1),
            Key::BackTab | Key::Left => self.page = self.page.after(Page::ALL.len() - 1),
            Key::Char('1') => self.page = Page::Sessions,
            Key::Char('2') => self.page = Page::Backends,
            Key::Char('3') => self.page = Page::Engines,
            Key::Char('h' | '?') | Key::Function(1) => self.dialog = Some(Dialog::Help),
            Key::Char('/') | Key::Function(3) => {
                self.dialog = Some(Dialog::Search(Prompt::default()));
            }
            Key::Char('n') if !self.searched_text.is_empty() => drop(self.search(1)),
            Key::Char('\\') | Key::Function(4) => {
                let filters: Vec<_> = self.filters.iter().map(ToString::to_string).collect();
                self.dialog = Some(Dialog::Filter(Prompt::new(filters.join(" "))));
            }
            Key::Char('>' | '<' | '.' | ',') | Key::Function(6) => {
                let orders = SessionOrder::value_variants();
                let now = orders.iter().position(|order| *order == self.order);
                self.dialog = Some(Dialog::Sort(now.unwrap_or_default()));
            }
            Key::Char('I') => self.is_reversed = !self.is_reversed,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('k') | Key::Function(9) => self.ask_to_end(),
            Key::Char('d' | 'u' | 'w') if self.page != Page::Backends => {
                self.message = Some("a server is drained, undrained or weighed on page 2".into());
            }
            Key::Char('d') => self.ask_to_change(Change::Drain),
            Key::Char('u') => self.ask_to_change(Change::Undrain),
            Key::Char('w') => self.ask_for_weight(),
            _ => {}
        }
        None
    }

    fn key_of_dialog(&mut self, dialog: Dialog, key: Key) -> Option<Action> {
        match (dialog, key) {
            (Dialog::Confirm(order, _), Key::Char('y' | 'Y') | Key::Enter) => {
                self.orders += 1;
                return Some(Action::Order(order));
            }
            // Any other key leaves the session or the server alone.
            (Dialog::Confirm(..) | Dialog::Help, _) => {}
            (_, Key::Escape | Key::Function(10)) => {}
            (Dialog::Sort(at), _) => self.sort_by(at, key),
            (Dialog::Search(_), Key::Enter) => {}
            (Dialog::Search(prompt), Key::Function(3)) => {
                self.search(1);
                self.dialog = Some(Dialog::Search(prompt));
            }
            (Dialog::Search(mut prompt), _) => {
                if prompt.key(key) {
                    self.searched_text = prompt.text.to_lowercase();
                    let is_found = self.search(0);
                    prompt.wrong = (!is_found).then(|| "nothing has it".into());
                }
                self.dialog = Some(Dialog::Search(prompt));
            }
            (Dialog::Filter(prompt), Key::Enter) => self.filter_by(prompt),
            (Dialog::Filter(mut prompt), _) => {
                prompt.key(key);
                self.dialog = Some(Dialog::Filter(prompt));
            }
            (Dialog::Weigh(order, prompt), Key::Enter) => self.weigh(order, prompt),
            (Dialog::Weigh(order, mut prompt), _) => {
                prompt.key(key);
                self.dialog = Some(Dialog::Weigh(order, prompt));
            }
        }
        None
    }

    fn sort_by(&mut self, at: usize, key: Key) {
        let orders = SessionOrder::value_variants();
        let last = orders.len() - 1;
        self.dialog = Some(Dialog::Sort(match key {
            Key::Enter => {
                self.order = orders[at];
                self.is_reversed = false;
                return;
            }
            Key::Up => at.saturating_sub(1),
            Key::Down => (at + 1).min(last),
            Key::Home | Key::PageUp => 0,
            Key::End | Key::PageDown => last,
            _ => at,
        }));
    }

    fn filter_by(&mut self, mut prompt: Prompt) {
        let words = prompt.text.split_whitespace();
        match words.map(SessionFilter::parse).collect() {
            Ok(filters) => self.filters = filters,
            Err(why) => {
                prompt.wrong = Some(why);
                self.dialog = Some(Dialog::Filter(prompt));
            }
        }
    }

    fn ask_to_end(&mut self) {
        if self.page != Page::Sessions {
            self.message = Some("a session is ended on page 1".into());
            return;
        }
        let Some(rated) = self.sessions().get(self.sessions.row()).copied() else {
            return;
        };
        let order = self.known.order(&rated.of, What::End(rated.row.id));
        let (client, target) = (&rated.row.client, &rated.row.target);
        let question = format!("End {}, {client} to {target}? y/n", order.name());
        self.dialog = Some(Dialog::Confirm(order, question));
    }

    fn ask_to_change(&mut self, change: Change) {
        let Some(of) = self.server() else {
            return;
        };
        let order = self.known.order(of.of, what(&of, change));
        let verb = match change {
            Change::Undrain => "Undrain",
            _ => "Drain",
        };
        let question = format!("{verb} {}? y/n", order.name());
        self.dialog = Some(Dialog::Confirm(order, question));
    }

    fn ask_for_weight(&mut self) {
        let Some(of) = self.server() else {
            return;
        };
        let weight = of.server.weight.and_then(|weight| weight.try_into().ok());
        match weight {
            Some(weight) => {
                let order = self.known.order(of.of, what(&of, Change::Weigh(weight)));
                self.dialog = Some(Dialog::Weigh(order, Prompt::default()));
            }
            None => self.message = Some(format!("server {} has no weight", of.server.server)),
        }
    }

    fn weigh(&mut self, mut order: Order, mut prompt: Prompt) {
        let weight = prompt.text.trim().parse().ok();
        match (weight.filter(|it| *it <= WEIGHT_MOST), &mut order.what) {
            (Some(to), What::Change(_, Change::Weigh(weight))) => {
                let from = std::mem::replace(weight, to);
                let name = order.name();
                let question = format!("Change the weight of {name} from {from} to {to}? y/n");
                self.dialog = Some(Dialog::Confirm(order, question));
            }
            _ => {
                prompt.wrong = Some(format!("it is not a number from 0 to {WEIGHT_MOST}"));
                self.dialog = Some(Dialog::Weigh(order, prompt));
            }
        }
    }

    /// The one under the cursor.
    fn server(&self) -> Option<ServerOf<'_>> {
        self.servers().get(self.rows().0).copied()
    }

    /// Goes to the next row that has the text, at least `from` rows further on and in a circle. Whether there is one.
    fn search(&mut self, from: usize) -> bool {
        let texts = self.texts();
        let count = texts.len();
        let at = self.rows().0;
        let mut next = (0..count).map(|number| (at + from + number) % count);
        let found = next.find(|row| texts[*row].to_lowercase().contains(&self.searched_text));
        if let Some(row) = found {
            self.go(Move::To(row));
        }
        found.is_some()
    }

    /// What can be searched for in each row.
    fn texts(&self) -> Vec<String> {
        match self.page {
            Page::Sessions => {
                let text = |one: &&Rated| {
                    let id = one.row.id.to_string();
                    let fields = SessionField::ALL.iter();
                    let fields = fields.filter_map(|(_, field)| one.row.text(*field));
                    let texts = once(&*id).chain(fields);
                    texts.collect::<Vec<_>>().join(" ")
                };
                self.sessions().iter().map(text).collect()
            }
            Page::Backends => {
                let text = |of: &ServerOf<'_>| {
                    let server = of.server;
                    let why = server.why.as_deref().unwrap_or_default();
                    [&*of.backend.name, &server.server, &server.state, why].join(" ")
                };
                self.servers().iter().map(text).collect()
            }
            Page::Engines => {
                let text = |share: &Share| {
                    let texts = [&share.engine, &share.why];
                    let texts = texts.map(|text| text.as_deref().unwrap_or_default());
                    texts.join(" ")
                };
                self.shares().iter().map(text).collect()
            }
        }
    }

    fn go(&mut self, to: Move) {
        self.with_cursor(Some(to));
    }

    /// Every cursor is where its row is now.
    fn settle(&mut self) {
        self.with_cursor(None);
    }

    fn with_cursor(&mut self, to: Option<Move>) {
        let shown = usize::from(self.layout().list.height);
        match self.page {
            Page::Sessions => {
                let name = |one: &&Rated| (one.of.clone(), one.row.id);
                let names: Vec<_> = self.sessions().iter().map(name).collect();
                turn(&mut self.sessions, to, &names, shown);
            }
            page => {
                let names = match page {
                    Page::Backends => self.servers().iter().map(name_of_server).collect(),
                    _ => self.shares().iter().map(name_of_share).collect::<Vec<_>>(),
                };
                turn(&mut self.others[page as usize - 1], to, &names, shown);
            }
        }
    }
}

fn turn<K: PartialEq + Clone>(cursor: &mut Cursor<K>, to: Option<Move>, names: &[K], shown: usize) {
    cursor.settle(names, shown);
    if let Some(to) = to {
        cursor.go(to, names, shown);
    }
}

fn what(of: &ServerOf<'_>, change: Change) -> What {
    let place = Place {
        backend: of.backend.name.clone(),
        server: of.server.server.clone(),
    };
    What::Change(place, change)
}

fn name_of_server(of: &ServerOf<'_>) -> RowName {
    let socket = of.of.path().display().to_string();
    (socket, of.backend.name.clone(), of.server.server.clone())
}

fn name_of_share(share: &Share) -> RowName {
    let [engine, why] = [&share.engine, &share.why].map(|text| text.clone().unwrap_or_default());
    (String::new(), engine, why)
}

#[cfg(test)]
pub(super) mod tests;
