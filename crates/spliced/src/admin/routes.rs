//! What one can ask for: each path with a method is one entry of a table.

use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::Request;
use super::given::Given;
use super::path::words_in;
use super::refusal::Refusal;
use crate::backend::Act;
use crate::sessions::About;

/// How long an answer may take that says only what is known.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// How long a reload may take: it may have to load the engines.
pub(crate) const RELOAD_WITHIN: Duration = Duration::from_secs(60);

/// What a path stands for.
#[derive(Debug)]
pub(super) struct Route {
    /// It may have words in capitals.
    pub(super) path: &'static str,
    pub(super) method: Method,
    action: Action,
    /// It changes something, so it is logged, and the socket for reading does not have it.
    pub(super) changes: bool,
    pub(super) within: Duration,
    about: &'static str,
}

/// Who answers.
#[derive(Debug)]
enum Action {
    /// The table itself.
    Index,
    /// What is known of the process, whatever its main thread does.
    Process,
    /// What is counted, whatever the main thread does.
    Metrics,
    /// The process.
    Ask(fn(Given<'_>) -> Result<Request, Refusal>),
}

/// An entry of the table, and what a client asks for with it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) route: &'static Route,
    /// As in the table, with what the client has in the place of words in capitals.
    pub(super) path: String,
    pub(super) asked: Asked,
}

/// Whom a client asks for what.
#[derive(Debug)]
pub(super) enum Asked {
    Index,
    Process,
    Metrics,
    Main(Request),
}

const fn reading(path: &'static str, action: Action, about: &'static str) -> Route {
    Route {
        path,
        method: Method::GET,
        action,
        changes: false,
        within: TOLD_WITHIN,
        about,
    }
}

const fn changing(
    method: Method,
    path: &'static str,
    action: Action,
    about: &'static str,
) -> Route {
    Route {
        path,
        method,
        action,
        changes: true,
        within: TOLD_WITHIN,
        about,
    }
}

/// Where Prometheus asks by default.
pub(super) const METRICS: &str = "/metrics";

pub(super) const ROUTES: &[Route] = &[
    reading(METRICS, Action::Metrics, "what is counted, as OpenMetrics"),
    reading("/v1", Action::Index, "the paths that there are"),
    reading(
        "/v1/status",
        Action::Ask(|_| Ok(Request::Status)),
        "process, listeners and backends",
    ),
    reading(
        "/v1/process",
        Action::Process,
        "version, start, configuration and last reload",
    ),
    reading(
        "/v1/listeners",
        Action::Ask(|_| Ok(Request::Listeners)),
        "listeners with their addresses and counts",
    ),
    changing(
        Method::POST,
        "/v1/listeners/LISTENER/drain",
        Action::Ask(|given| Ok(Request::Drain(given.name()))),
        "the listener takes no new clients; those that it has go on",
    ),
    changing(
        Method::POST,
        "/v1/listeners/LISTENER/undrain",
        Action::Ask(|given| Ok(Request::Undrain(given.name()))),
        "the listener takes clients again",
    ),
    reading(
        "/v1/backends",
        Action::Ask(|_| Ok(Request::Backends)),
        "backends and the state of their servers",
    ),
    reading(
        "/v1/backends/BACKEND/servers/SERVER",
        Action::Ask(|given| given.order(Act::Tell)),
        "one server",
    ),
    changing(
        Method::POST,
        "/v1/backends/BACKEND/servers/SERVER/drain",
        Action::Ask(|given| given.order(Act::Drain)),
        "the server gets no new clients; those that it has go on",
    ),
    changing(
        Method::POST,
        "/v1/backends/BACKEND/servers/SERVER/undrain",
        Action::Ask(|given| given.order(Act::Undrain)),
        "the server gets clients again",
    ),
    changing(
        Method::PUT,
        "/v1/backends/BACKEND/servers/SERVER/weight",
        Action::Ask(|given| {
            let weight = given.weight()?;
            given.order(Act::Weigh(weight.into()))
        }),
        "sets the weight of the server to that of the query: ?weight=N",
    ),
    changing(
        Method::PUT,
        "/v1/backends/BACKEND/servers/SERVER",
        Action::Ask(|given| {
            let weight = match given.query {
                None | Some("") => 1,
                Some(_) => given.weight()?,
            };
            given.order(Act::Add(weight))
        }),
        "adds the server until the next reload, with the weight of the query if there is one: ?weight=N",
    ),
    changing(
        Method::DELETE,
        "/v1/backends/BACKEND/servers/SERVER",
        Action::Ask(|given| given.order(Act::Remove)),
        "removes the server until the next reload",
    ),
    reading(
        "/v1/sessions",
        Action::Ask(|given| Ok(Request::Sessions(About::All(given.filters()?)))),
        "live sessions; those that a query such as ?engine=copy takes",
    ),
    changing(
        Method::DELETE,
        "/v1/sessions",
        Action::Ask(|given| Ok(Request::Sessions(About::KillAll(given.some_filters()?)))),
        "ends the sessions that the query takes: ?server=10.0.0.7:80",
    ),
    reading(
        "/v1/sessions/ID",
        Action::Ask(|given| Ok(Request::Sessions(About::One(given.number())))),
        "one live session",
    ),
    changing(
        Method::DELETE,
        "/v1/sessions/ID",
        Action::Ask(|given| Ok(Request::Sessions(About::Kill(given.number())))),
        "ends a session: both peers get a reset",
    ),
    reading(
        "/v1/log",
        Action::Ask(|_| Ok(Request::Log(None))),
        "the log level",
    ),
    changing(
        Method::PUT,
        "/v1/log",
        Action::Ask(|given| Ok(Request::Log(Some(given.level()?)))),
        "sets the log level to that of the query: ?level=LEVEL",
    ),
    Route {
        path: "/v1/reload",
        method: Method::POST,
        action: Action::Ask(|_| Ok(Request::Reload)),
        changes: true,
        within: RELOAD_WITHIN,
        about: "reads the configuration again",
    },
];

/// The entry for a request, and what it asks for.
///
/// # Errors
/// If there is none, or the query is not one for it.
pub(super) fn find(method: &Method, path: &str, query: Option<&str>) -> Result<Found, Refusal> {
    let of_path = ROUTES
        .iter()
        .filter_map(|route| Some((route, words_in(path, route.path)?)));
    let mut of_path: Vec<_> = of_path.collect();
    if of_path.is_empty() {
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "there is no such path; GET /v1 lists those that there are",
        ));
    }
    // The library leaves the body out.
    let asked = match *method {
        Method::HEAD => &Method::GET,
        _ => method,
    };
    let Some(place) = of_path.iter().position(|(route, _)| *asked == route.method) else {
        let methods = of_path.iter().map(|(route, _)| route.method.as_str());
        let methods: Vec<_> = methods.collect();
        let sentence = format!(
            "{} does not take {method}; ask with {}",
            path.escape_debug(),
            methods.join(" or ")
        );
        let allow = methods.join(", ").replace("GET", "GET, HEAD");
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, sentence).allowing(allow));
    };
    let (route, words) = of_path.swap_remove(place);
    let asked = match &route.action {
        Action::Index => Asked::Index,
        Action::Process => Asked::Process,
        Action::Metrics => Asked::Metrics,
        Action::Ask(request) => Asked::Main(request(Given { words, query })?),
    };
    Ok(Found {
        route,
        path: path.into(),
        asked,
    })
}

pub(super) fn index() -> Value {
    let entry = |route: &Route| json!({"path": route.path, "method": route.method.as_str(), "about": route.about});
    json!({ "paths": ROUTES.iter().map(entry).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::path::{path_of_server, path_of_sessions};
    use crate::backend::Order;
    use crate::session_filter::SessionFilter;

    /// The status of a refusal.
    fn refused(method: Method, path: &str) -> Option<StatusCode> {
        let found = find(&method, path, None);
        found.err().map(|refusal| refusal.status)
    }

    #[test]
    fn a_request_is_found_by_method_and_path() {
        for route in ROUTES {
            let path = ["ID", "BACKEND", "SERVER"]
                .iter()
                .fold(route.path.to_owned(), |path, word| path.replace(word, "7"));
            let query = match (&route.method, path.rsplit('/').next()) {
                (&Method::PUT, Some("log")) => Some("level=info"),
                (&Method::PUT, _) => Some("weight=7"),
                (&Method::DELETE, Some("sessions")) => Some("engine=copy"),
                _ => None,
            };
            find(&route.method, &path, query).expect("it is found");
            let is_read = route.method == Method::GET;
            assert_eq!(is_read, !route.changes, "{path}");
            if is_read {
                assert_eq!(refused(Method::HEAD, &path), None);
            }
        }
        for path in [
            "/",
            "",
            "*",
            "/v1/",
            "/v2/status",
            "/v1/status/",
            "/V1/status",
            "/v1/sessions/",
            "/v1/sessions/ID",
            "/v1/sessions/+7",
            "/v1/sessions/07",
            "/v1/sessions/-1",
            "/v1/sessions/7/",
            "/v1/sessions/18446744073709551616",
            "/v1/backends/b",
            "/v1/backends//servers/x",
            "/v1/backends/b/servers/",
            "/v1/backends/b/servers/x/y",
            "/v1/backends/b/servers/%FF",
            "/v1/backends/b/listeners/x",
        ] {
            assert_eq!(refused(Method::GET, path), Some(StatusCode::NOT_FOUND));
        }
    }

    #[test]
    fn a_path_says_which_methods_it_takes() {
        for (method, path, allow, named) in [
            (Method::GET, "/v1/reload", "POST", "POST"),
            (Method::HEAD, "/v1/reload", "POST", "POST"),
            (Method::POST, "/v1/status", "GET, HEAD", "GET"),
            (Method::DELETE, "/v1", "GET, HEAD", "GET"),
            (
                Method::PUT,
                "/v1/sessions",
                "GET, HEAD, DELETE",
                "GET or DELETE",
            ),
            (
                Method::POST,
                "/v1/sessions/7",
                "GET, HEAD, DELETE",
                "GET or DELETE",
            ),
        ] {
            let refusal = find(&method, path, None).expect_err("refused");
            assert_eq!(refusal.status, StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(refusal.allow.as_deref(), Some(allow), "{path}");
            let sentence = format!("{path} does not take {method}; ask with {named}");
            assert_eq!(refusal.sentence, sentence);
        }
    }

    #[test]
    fn what_is_asked_for_has_the_number_of_the_path_and_the_filters_of_the_query() {
        let asked = |method: Method, path: &str, query: Option<&str>| {
            let found = find(&method, path, query).map_err(|refusal| refusal.sentence)?;
            assert_eq!(found.path, path);
            match found.asked {
                Asked::Main(request) => Ok::<_, String>(request),
                other => panic!("{other:?}"),
            }
        };
        let most = u64::MAX;
        let path = format!("/v1/sessions/{most}");
        let about = |about| Ok(Request::Sessions(about));
        assert_eq!(asked(Method::GET, &path, None), about(About::One(most)));
        assert_eq!(
            asked(Method::DELETE, "/v1/sessions/7", Some("x=y")),
            about(About::Kill(7))
        );
        let query = |query| asked(Method::GET, "/v1/sessions", query);
        assert_eq!(query(None), about(About::All(Vec::new())));
        assert_eq!(query(Some("")), about(About::All(Vec::new())));
        for name in ["[::1]:80", "unix:/a b/%2F", "x", "ü?#"] {
            let path = path_of_server("b/c", name, "weight");
            let order = Order {
                backend: "b/c".into(),
                server: name.into(),
                act: Act::Weigh(256),
            };
            assert_eq!(
                asked(Method::PUT, &path, Some("weight=256")),
                Ok(Request::Order(order))
            );
        }
        for query in [
            None,
            Some("weight=257"),
            Some("weight=-1"),
            Some("weight=1&x=1"),
        ] {
            asked(Method::PUT, &path_of_server("b", "x", "weight"), query).expect_err("refused");
        }
        assert_eq!(
            path_of_server("b", "[::1]:80", ""),
            "/v1/backends/b/servers/[::1]:80"
        );
        let filter = |name, value| SessionFilter::new(name, value).expect("a filter");
        assert_eq!(
            query(Some("engine=copy&client=%5B%3A%3A1%5D:80")),
            about(About::All(vec![
                filter("engine", "copy"),
                filter("client", "[::1]:80")
            ]))
        );
        let filters = vec![filter("server", "a&b=c"), filter("client", "::1")];
        let path = path_of_sessions(&filters);
        let (path, query_of_path) = path.split_once('?').expect("a query");
        assert_eq!(
            asked(Method::DELETE, path, Some(query_of_path)),
            about(About::KillAll(filters))
        );
        for nothing in [None, Some("")] {
            let refused = asked(Method::DELETE, path, nothing).expect_err("refused");
            assert!(refused.contains("which sessions"), "{refused}");
        }
        let refused = query(Some("colour=red")).expect_err("refused");
        assert!(
            refused.starts_with("there is no field colour;"),
            "{refused}"
        );
    }
}
