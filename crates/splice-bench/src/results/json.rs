//! JSON that a person can read and that stays small: objects in lines, arrays of numbers in one.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// The text of `value`.
pub(super) fn text(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut text, Lines::default()))?;
    text.push(b'\n');
    Ok(text)
}

/// Where the text is between two values.
#[derive(Debug, Default)]
struct Lines {
    depth: usize,
    /// The next value is an array's, so that an object begins a line.
    in_array: bool,
    /// An object has just ended, so that what ends now ends on a line of its own.
    after_object: bool,
}

impl Lines {
    fn begin_line(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b"  "))
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        self.after_object = false;
        out.write_all(b"[")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.in_array = true;
        if first { Ok(()) } else { out.write_all(b",") }
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        if std::mem::take(&mut self.after_object) {
            self.begin_line(out)?;
        }
        out.write_all(b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if std::mem::take(&mut self.in_array) {
            self.begin_line(out)?;
        }
        self.depth += 1;
        out.write_all(b"{")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(b",")?;
        }
        self.begin_line(out)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.in_array = false;
        out.write_all(b": ")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        self.begin_line(out)?;
        self.after_object = true;
        out.write_all(b"}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn objects_take_lines_and_numbers_do_not() {
        let value = json!({"a": [{"b": [[1, 2], [3, 4]], "c": []}, {"b": 1}], "d": ["x", "y"]});
        let text = super::text(&value).expect("it is JSON");
        let expected = r#"{
  "a": [
    {
      "b": [[1,2],[3,4]],
      "c": []
    },
    {
      "b": 1
    }
  ],
  "d": ["x","y"]
}
"#;
        assert_eq!(String::from_utf8_lossy(&text), expected);
    }
}
