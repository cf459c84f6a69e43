//! Requests of clients that mean no good: what the fuzzer and the tests expect of each.

use hyper::{Method, StatusCode};

use super::Request;
use super::path::path_of_server;
use super::routes::{Asked, Found, find};
use crate::backend::Act;
use crate::session_filter::SessionFilter;
use crate::sessions::About;
use crate::weight::WEIGHT_MOST;

/// A corpus under `tests/corpus`, and what reads its inputs and panics if one shows a mistake.
type Entry = (&'static str, fn(&[u8]));

pub(crate) const READERS: &[Entry] = &[
    ("control-request", request),
    ("session-filter", session_filter),
];

/// `METHOD PATH?QUERY`, as hyper hands the parts on. It has a text only.
fn request(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let (method, target) = text.split_once(' ').unwrap_or(("GET", text));
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return;
    };
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    match find(&method, path, query) {
        Ok(found) => expect_consistent(&method, path, &found),
        Err(refusal) => {
            expect_sentence(&refusal.sentence);
            let is_of_method = refusal.status == StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(refusal.allow.is_some(), is_of_method, "{refusal:?}");
        }
    }
}

/// What was found is what was asked for, and nothing that a path or a query cannot ask for.
fn expect_consistent(method: &Method, path: &str, found: &Found) {
    let asked = match *method {
        Method::HEAD => &Method::GET,
        _ => method,
    };
    assert_eq!((&found.route.method, &*found.path), (asked, path));
    assert_eq!(found.route.changes, *asked != Method::GET, "{path}");
    let Asked::Main(request) = &found.asked else {
        return;
    };
    match request {
        Request::Order(order) => {
            let (backend, server) = (&order.backend, &order.server);
            let names = names_at(&path_of_server(backend, server, ""));
            assert_eq!(names, Some((backend.clone(), server.clone())));
            match order.act {
                Act::Weigh(weight) => assert!(weight <= WEIGHT_MOST.into(), "{weight}"),
                Act::Add(weight) => assert!(weight <= WEIGHT_MOST, "{weight}"),
                Act::Tell | Act::Drain | Act::Undrain | Act::Remove => {}
            }
        }
        Request::Drain(name) | Request::Undrain(name) => assert!(!name.is_empty(), "{path}"),
        Request::Sessions(About::All(filters) | About::KillAll(filters)) => {
            for filter in filters {
                let again = SessionFilter::parse(&filter.to_string());
                assert_eq!(again.as_ref(), Ok(filter));
            }
        }
        Request::Sessions(About::One(id) | About::Kill(id)) => {
            assert!(path.ends_with(&format!("/{id}")), "{path}: {id}");
        }
        Request::Status | Request::Listeners | Request::Backends | Request::Log(_) => {}
        Request::Reload => assert_eq!(path, "/v1/reload"),
    }
}

/// The names of the backend and of the server in `path`.
fn names_at(path: &str) -> Option<(String, String)> {
    match find(&Method::GET, path, None).ok()?.asked {
        Asked::Main(Request::Order(order)) => Some((order.backend, order.server)),
        _ => None,
    }
}

/// `FIELD=VALUE`.
fn session_filter(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match SessionFilter::parse(text) {
        Ok(filter) => assert_eq!(filter.to_string(), text),
        Err(sentence) => expect_sentence(&sentence),
    }
}

/// A terminal or a log may get it as it is.
fn expect_sentence(sentence: &str) {
    assert!(!sentence.is_empty());
    assert!(!sentence.contains(char::is_control), "{sentence:?}");
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic::catch_unwind;
    use std::path::{Path, PathBuf};

    use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::admin::routes::ROUTES;

    fn inputs(of: &str) -> Vec<PathBuf> {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
        let directory = corpora.join(of);
        let entries = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
        entries.map(|entry| entry.expect(of).path()).collect()
    }

    /// What the fuzzer has found worth keeping.
    #[test]
    fn every_reader_takes_every_corpus() {
        let known: Vec<_> = READERS.iter().map(|(name, _)| *name).collect();
        for corpus in inputs("") {
            let name = corpus.file_name().and_then(|name| name.to_str());
            let name = name.expect("a name");
            assert!(known.contains(&name), "no reader has {name}");
            let inputs = inputs(name);
            assert!(!inputs.is_empty(), "{name} has no input");
            for path in inputs {
                let input = fs::read(&path).expect(name);
                for (reader, read) in READERS {
                    let is_taken = catch_unwind(|| read(&input)).is_ok();
                    assert!(is_taken, "{reader}: {}", path.display());
                }
            }
        }
        for name in known {
            inputs(name);
        }
    }

    fn method() -> impl Strategy<Value = &'static str> {
        select(&["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "x"][..])
    }

    /// Any characters, also those that control a terminal.
    fn text() -> impl Strategy<Value = String> {
        let characters = prop::collection::vec(any::<char>(), 0..20);
        characters.prop_map(String::from_iter)
    }

    /// Any bytes, percent-encoded or not.
    fn word() -> impl Strategy<Value = String> {
        let bytes = prop::collection::vec(any::<u8>(), 0..20);
        let encoded = bytes.prop_map(|it| percent_encode(&it, NON_ALPHANUMERIC).to_string());
        prop_oneof![encoded, text(), "[0-9]{1,20}", "%[0-9a-fA-F%]{0,4}"]
    }

    /// A path of the table with such words in it, and perhaps something behind it.
    fn path() -> impl Strategy<Value = String> {
        let words = prop::collection::vec(word(), 2);
        let paths: Vec<_> = ROUTES.iter().map(|route| route.path).collect();
        (
            select(paths),
            words,
            prop_oneof![Just(String::new()), word()],
        )
            .prop_map(|(path, words, end)| {
                let mut words = words.into_iter();
                let parts = path.split('/').map(|part| match part {
                    "ID" | "BACKEND" | "LISTENER" | "SERVER" => words.next().expect("two at most"),
                    part => part.into(),
                });
                parts.collect::<Vec<_>>().join("/") + &end
            })
    }

    fn query() -> impl Strategy<Value = String> {
        const FIELDS: &[&str] = &["weight", "level", "engine", "client", "colour", ""];
        const VALUES: &[&str] = &["", "0", "256", "257", "info", "copy", "%1b"];
        let field = prop_oneof![select(FIELDS).prop_map(String::from), word()];
        let value = prop_oneof![select(VALUES).prop_map(String::from), word()];
        let pair = (field, value).prop_map(|(field, value)| format!("{field}={value}"));
        let pairs = prop::collection::vec(pair, 0..3);
        let pairs = pairs.prop_map(|pairs| format!("?{}", pairs.join("&")));
        prop_oneof![Just(String::new()), pairs, text()]
    }

    proptest! {
        #[test]
        fn every_request_is_found_or_refused_by_a_sentence(
            method in method(), path in path(), query in query()
        ) {
            request(format!("{method} {path}{query}").as_bytes());
        }

        #[test]
        fn every_filter_is_told_back_or_refused_by_a_sentence(text in text(), value in word()) {
            session_filter(text.as_bytes());
            session_filter(format!("client={value}").as_bytes());
            session_filter(format!("{value}=x").as_bytes());
        }

        #[test]
        fn a_server_of_any_name_is_found_by_its_path(
            backend in text(), server in text(),
            (method, what) in select(&[
                ("GET", ""), ("DELETE", ""), ("POST", "drain"), ("POST", "undrain"), ("PUT", "weight"),
            ][..]),
        ) {
            prop_assume!(!backend.is_empty() && !server.is_empty());
            let path = path_of_server(&backend, &server, what);
            prop_assert!(path.is_ascii() && !path.contains(['?', '#', ' ']));
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            let found = find(&method, &path, Some("weight=7").filter(|_| method == Method::PUT));
            let Asked::Main(Request::Order(order)) = found.expect("it is found").asked else {
                panic!("{path} is not about a server");
            };
            prop_assert_eq!((order.backend, order.server), (backend, server));
        }
    }
}
