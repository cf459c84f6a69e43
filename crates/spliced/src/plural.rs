//! So many of something, in words.

/// `1 session` or `2 sessions`: `what` is the word for one, whose plural ends in s.
pub(crate) fn counted(count: impl TryInto<u64>, what: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular_and_none_is_plural() {
        for (count, told) in [(0_usize, "0 routes"), (1, "1 route"), (2, "2 routes")] {
            assert_eq!(counted(count, "route"), told);
        }
    }
}
