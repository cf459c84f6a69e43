//! A path on the control socket, with names in it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::session_filter::SessionFilter;

/// A word in capitals in a path stands for any text; this one for a number.
const NUMBER: &str = "ID";

/// What a part of a path cannot have as it is, so that addresses stay readable.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'-')
    .remove(b'_')
    .remove(b':')
    .remove(b'[')
    .remove(b']');

/// The path of a server, where the table has names in capitals, and of what is done with it if that is not empty.
pub(crate) fn path_of_server(backend: &str, server: &str, what: &str) -> String {
    let [backend, server] = [backend, server].map(|name| utf8_percent_encode(name, ENCODED));
    let path = format!("/v1/backends/{backend}/servers/{server}/{what}");
    path.trim_end_matches('/').into()
}

/// The path of the sessions that all `filters` take.
pub(crate) fn path_of_sessions(filters: &[SessionFilter]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for filter in filters {
        query.append_pair(filter.field.name(), &filter.value);
    }
    format!("/v1/sessions?{}", query.finish())
}

/// What `path` has for the words in capitals of `pattern`; `None` if it is another path.
pub(super) fn words_in(path: &str, pattern: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut parts = path.split('/');
    for own in pattern.split('/') {
        let part = parts.next()?;
        if own.is_empty() || own.contains(|letter: char| !letter.is_ascii_uppercase()) {
            if own != part {
                return None;
            }
            continue;
        }
        let word = percent_decode_str(part).decode_utf8().ok()?;
        // A number has one spelling, so that the log has the path as it was asked for.
        let is_number = || word.parse().is_ok_and(|it: u64| it.to_string() == part);
        if part.is_empty() || own == NUMBER && !is_number() {
            return None;
        }
        words.push(word.into_owned());
    }
    parts.next().is_none().then_some(words)
}
