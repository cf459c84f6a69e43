//! Sizes in bytes as a person types them.

/// Reads `64`, `32KiB`, `256MiB` or `2GiB`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(format!("unknown unit {other:?}: use B, KiB, MiB or GiB")),
    };
    let number = digits
        .parse::<u64>()
        .map_err(|error| format!("{digits:?}: {error}"))?;
    number
        .checked_mul(unit)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| format!("{text:?} is zero or too large"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse("256MiB"), Ok(256 << 20));
        assert_eq!(parse("12"), Ok(12));
        for wrong in ["", "MiB", "1MB", "0", "-1", "99999999999GiB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
