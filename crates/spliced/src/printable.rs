//! Text that others have written, for a terminal.

/// Escapes what a terminal would act on, and what turns the direction of what it shows.
pub(crate) fn printable(text: &str) -> String {
    match text.contains(is_acted_on) {
        true => text.escape_debug().to_string(),
        false => text.into(),
    }
}

/// Control characters, and those for bidirectional text (Unicode Standard Annex 9, table 4).
fn is_acted_on(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_escaped() {
        for (text, shown) in [
            ("ä \"b\"", "ä \"b\""),
            ("a\nb\u{1b}[2J", "a\\nb\\u{1b}[2J"),
            ("a\u{202e}b", "a\\u{202e}b"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
