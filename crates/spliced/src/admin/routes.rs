//! What one can ask for: each path with a method is one entry of a table.

use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::Request;
use super::refusal::Refusal;
use crate::session_args::SessionFilter;
use crate::sessions::About;

/// How long an answer may take that says only what is known.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// How long a reload may take: it may have to load the engines.
pub(crate) const RELOAD_WITHIN: Duration = Duration::from_secs(60);

/// The part of a path that stands for a number.
const PARAMETER: &str = "ID";

/// What a path stands for.
#[derive(Debug)]
pub(super) struct Route {
    /// It may end in [`PARAMETER`].
    path: &'static str,
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
    /// The main thread.
    Ask(Request),
    /// The same, of those that the query takes.
    AskFor(fn(Vec<SessionFilter>) -> Request),
    /// The same, of the one in the path.
    AskOf(fn(u64) -> Request),
}

/// An entry of the table, and what a client asks for with it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) route: &'static Route,
    /// As in the table, with its number.
    pub(super) path: String,
    pub(super) asked: Asked,
}

/// Whom a client asks for what.
#[derive(Debug)]
pub(super) enum Asked {
    Index,
    Process,
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

pub(super) const ROUTES: &[Route] = &[
    reading("/v1", Action::Index, "the paths that there are"),
    reading(
        "/v1/status",
        Action::Ask(Request::Status),
        "process, listeners and backends",
    ),
    reading(
        "/v1/process",
        Action::Process,
        "version, start, configuration and last reload",
    ),
    reading(
        "/v1/listeners",
        Action::Ask(Request::Listeners),
        "listeners with their addresses and counts",
    ),
    reading(
        "/v1/backends",
        Action::Ask(Request::Backends),
        "backends and the state of their servers",
    ),
    reading(
        "/v1/sessions",
        Action::AskFor(|filters| Request::Sessions(About::All(filters))),
        "live sessions; those that a query such as ?engine=copy takes",
    ),
    reading(
        "/v1/sessions/ID",
        Action::AskOf(|id| Request::Sessions(About::One(id))),
        "one live session",
    ),
    Route {
        path: "/v1/sessions/ID",
        method: Method::DELETE,
        action: Action::AskOf(|id| Request::Sessions(About::Kill(id))),
        changes: true,
        within: TOLD_WITHIN,
        about: "ends a session: both peers get a reset",
    },
    Route {
        path: "/v1/reload",
        method: Method::POST,
        action: Action::Ask(Request::Reload),
        changes: true,
        within: RELOAD_WITHIN,
        about: "reads the configuration again",
    },
];

impl Route {
    /// The number in `path`, or 0 if it needs none; `None` if the entry is not for that path.
    fn number_in(&self, path: &str) -> Option<u64> {
        let Some(stem) = self.path.strip_suffix(PARAMETER) else {
            return (self.path == path).then_some(0);
        };
        let text = path.strip_prefix(stem)?;
        let number: u64 = text.parse().ok()?;
        // A number has one spelling, so that the log has the path as it was asked for.
        (number.to_string() == text).then_some(number)
    }
}

/// The entry for a request, and what it asks for.
///
/// # Errors
/// If there is none, or the query is not one for it.
pub(super) fn find(method: &Method, path: &str, query: Option<&str>) -> Result<Found, Refusal> {
    let of_path = ROUTES
        .iter()
        .filter_map(|route| Some((route, route.number_in(path)?)));
    let of_path: Vec<_> = of_path.collect();
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
    let Some(&(route, number)) = of_path.iter().find(|(route, _)| *asked == route.method) else {
        let methods = of_path.iter().map(|(route, _)| route.method.as_str());
        let methods: Vec<_> = methods.collect();
        let sentence = format!(
            "{path} does not take {method}; ask with {}",
            methods.join(" or ")
        );
        let allow = methods.join(", ").replace("GET", "GET, HEAD");
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, sentence).allowing(allow));
    };
    let asked = match &route.action {
        Action::Index => Asked::Index,
        Action::Process => Asked::Process,
        Action::Ask(request) => Asked::Main(request.clone()),
        Action::AskFor(request) => Asked::Main(request(filters(query)?)),
        Action::AskOf(request) => Asked::Main(request(number)),
    };
    Ok(Found {
        route,
        path: path.into(),
        asked,
    })
}

/// The filters in a query, such as `engine=copy&client=192.0.2.1`.
fn filters(query: Option<&str>) -> Result<Vec<SessionFilter>, Refusal> {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let filters = pairs.map(|(field, value)| SessionFilter::new(&field, &value));
    filters
        .collect::<Result<_, _>>()
        .map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))
}

pub(super) fn index() -> Value {
    let entry = |route: &Route| json!({"path": route.path, "method": route.method.as_str(), "about": route.about});
    json!({ "paths": ROUTES.iter().map(entry).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a refusal.
    fn refused(method: Method, path: &str) -> Option<StatusCode> {
        let found = find(&method, path, None);
        found.err().map(|refusal| refusal.status)
    }

    #[test]
    fn a_request_is_found_by_method_and_path() {
        for route in ROUTES {
            let path = route.path.replace(PARAMETER, "7");
            assert_eq!(refused(route.method.clone(), &path), None);
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
            (Method::DELETE, "/v1/sessions", "GET, HEAD", "GET"),
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
        let filter = |name, value| SessionFilter::new(name, value).expect("a filter");
        assert_eq!(
            query(Some("engine=copy&client=%5B%3A%3A1%5D:80")),
            about(About::All(vec![
                filter("engine", "copy"),
                filter("client", "[::1]:80")
            ]))
        );
        let refused = query(Some("colour=red")).expect_err("refused");
        assert!(
            refused.starts_with("there is no field colour;"),
            "{refused}"
        );
    }
}
