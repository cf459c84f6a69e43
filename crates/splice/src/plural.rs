//! So many connections do something, in words.

/// What `count` spliced connections do, with the verb for one and for more.
pub(crate) fn connections(count: usize, one: &str, more: &str) -> String {
    match count {
        1 => format!("1 spliced connection {one}"),
        _ => format!("{count} spliced connections {more}"),
    }
}

#[cfg(test)]
mod tests {
    use super::connections;

    #[test]
    fn the_verb_follows_the_number() {
        for (count, expected) in [
            (0, "0 spliced connections go back"),
            (1, "1 spliced connection goes back"),
            (2, "2 spliced connections go back"),
        ] {
            assert_eq!(connections(count, "goes back", "go back"), expected);
        }
    }
}
