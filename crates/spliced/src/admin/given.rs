//! What the path and the query of a request give.

use std::borrow::Cow;

use clap::ValueEnum as _;
use hyper::StatusCode;

use super::Request;
use super::refusal::Refusal;
use crate::backend::{Act, Order};
use crate::log_level::Level;
use crate::session_filter::SessionFilter;
use crate::weight::weight;

/// What a client has given beside the method and the fixed parts of the path.
pub(super) struct Given<'a> {
    /// What the path has for each word in capitals, in their order.
    pub(super) words: Vec<String>,
    pub(super) query: Option<&'a str>,
}

impl Given<'_> {
    /// The only number in the path.
    pub(super) fn number(&self) -> u64 {
        // Nothing but a number takes its place.
        let mut numbers = self.words.iter().filter_map(|word| word.parse().ok());
        numbers.next().unwrap_or_default()
    }

    /// The only name in the path.
    pub(super) fn name(self) -> String {
        self.words.into_iter().next().unwrap_or_default()
    }

    /// About the backend and the server in the path.
    pub(super) fn order(self, act: Act) -> Result<Request, Refusal> {
        let mut names = self.words.into_iter();
        Ok(Request::Order(Order {
            backend: names.next().unwrap_or_default(),
            server: names.next().unwrap_or_default(),
            act,
        }))
    }

    /// The filters in the query, such as `engine=copy&client=192.0.2.1`.
    pub(super) fn filters(&self) -> Result<Vec<SessionFilter>, Refusal> {
        let pairs = form_urlencoded::parse(self.query.unwrap_or_default().as_bytes());
        let filters = pairs.map(|(field, value)| SessionFilter::new(&field, &value));
        filters
            .collect::<Result<_, _>>()
            .map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))
    }

    /// Filters of which there is one at least, so that nobody ends all sessions by leaving them out.
    pub(super) fn some_filters(&self) -> Result<Vec<SessionFilter>, Refusal> {
        let filters = self.filters()?;
        match filters.is_empty() {
            false => Ok(filters),
            true => Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "the query does not say which sessions are to end; give it a field, as in ?server=10.0.0.7:80",
            )),
        }
    }

    /// `level` of the query, which has nothing else.
    pub(super) fn level(&self) -> Result<Level, Refusal> {
        let known = |value: Cow<'_, str>| Level::from_str(&value, false).ok();
        self.only("level").and_then(known).ok_or_else(|| {
            let names: Vec<_> = Level::value_variants().iter().map(|it| it.name()).collect();
            let why = format!(
                "the query is not ?level=LEVEL with one of {}",
                names.join(", ")
            );
            Refusal::new(StatusCode::BAD_REQUEST, why)
        })
    }

    /// `weight` of the query, which has nothing else.
    pub(super) fn weight(&self) -> Result<u16, Refusal> {
        let weight = weight(&self.only("weight").unwrap_or_default());
        weight.map_err(|why| {
            let why = format!("the query is not ?weight=N; {why}");
            Refusal::new(StatusCode::BAD_REQUEST, why)
        })
    }

    /// The field `name` of the query, if it has nothing else.
    fn only(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut pairs = form_urlencoded::parse(self.query.unwrap_or_default().as_bytes());
        match (pairs.next(), pairs.next()) {
            (Some((found, value)), None) if found == name => Some(value),
            _ => None,
        }
    }
}
