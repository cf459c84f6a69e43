//! Writes the Rust twins of the types in `bpf/types.bpf.c`, from that object's BTF: `make bpf` calls it.
//!
//! The section that a variable lies in says what becomes of its type:
//!
//! | section | in Rust |
//! |---|---|
//! | `value` | a plain structure, which is copied |
//! | `shared` | a structure of atomics: the kernel and the process see it at the same time |
//! | `constants` | a module with the constants of an enumeration |
//! | `names` | the same, and the names of the constants in their order; the last constant is their number |

use std::collections::HashSet;
use std::fmt::Write as _;

use libbpf_rs::btf::types::{
    Array, DataSec, Enum, EnumMember, Int, IntEncoding, MemberAttr, Struct, Typedef, Var,
};
use libbpf_rs::btf::{Btf, BtfType, HasSize, ReferencesType};

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let object = std::env::args_os().nth(1).ok_or("which object?")?;
    let btf = Btf::from_path(object)?;
    let mut twins = Twins {
        btf: &btf,
        values: variables(&btf, "value").map(name_of).collect(),
        written: Vec::new(),
        atomics: HashSet::new(),
        text: HEAD.into(),
    };
    for section in ["value", "shared"] {
        for of in variables(&btf, section) {
            let of = Struct::try_from(of).map_err(|_| format!("no structure in {section}"))?;
            twins.add_struct(&of, section == "shared")?;
        }
    }
    for section in ["constants", "names"] {
        for of in variables(&btf, section) {
            let of = Enum::try_from(of).map_err(|_| format!("no enumeration in {section}"))?;
            twins.add_enum(&of, section == "names");
        }
    }
    let mut atomics: Vec<&str> = twins.atomics.iter().map(String::as_str).collect();
    atomics.sort_unstable();
    print!("{}", twins.text.replace("ATOMICS", &atomics.join(", ")));
    Ok(())
}

const HEAD: &str = "\
//! The twins of the types that the BPF programs share with this process, as `make bpf` has found them in the BTF of
//! `bpf/types.bpf.c`. Do not edit: the headers in `bpf` define the types, and say what their fields mean.

use std::sync::atomic::{ATOMICS};

use crate::plain::Plain;
";

/// The types of the variables in a section, without qualifiers and other names.
fn variables<'a>(btf: &'a Btf<'_>, section: &str) -> impl Iterator<Item = BtfType<'a>> {
    let section: Option<DataSec<'a>> = btf.type_by_name(section);
    let ids: Vec<_> = section
        .iter()
        .flat_map(|section| {
            section
                .iter()
                .map(|variable| variable.ty)
                .collect::<Vec<_>>()
        })
        .collect();
    ids.into_iter().filter_map(|id| {
        let variable: Var<'a> = btf.type_by_id(id)?;
        Some(variable.referenced_type().skip_mods_and_typedefs())
    })
}

fn name_of(of: BtfType<'_>) -> String {
    of.name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `segment_tuple` is `SegmentTuple` in Rust.
fn camel_case(name: &str) -> String {
    let words = name.split('_').filter(|word| !word.is_empty());
    words
        .map(|word| word[..1].to_uppercase() + &word[1..])
        .collect()
}

struct Twins<'a> {
    btf: &'a Btf<'a>,
    /// Structures that are copied, in shared memory too.
    values: Vec<String>,
    written: Vec<String>,
    atomics: HashSet<String>,
    text: String,
}

impl Twins<'_> {
    /// Writes a structure behind those that it is made of.
    fn add_struct(&mut self, of: &Struct<'_>, shared: bool) -> Result<()> {
        let name = name_of(**of);
        if self.written.contains(&name) {
            return Ok(());
        }
        let mut fields = String::new();
        let (mut end, mut has_default) = (0, true);
        for member in of.iter() {
            let field = member.name.unwrap_or_default().to_string_lossy();
            let place = || format!("{field} of struct {name}");
            let MemberAttr::Normal { offset } = member.attr else {
                return Err(format!("{}: bit-fields have no twin", place()).into());
            };
            // What lies between two fields would be bytes that nobody has set.
            if offset / 8 != end {
                return Err(format!("{}: there is padding before it", place()).into());
            }
            let typed = self.btf.type_by_id(member.ty).ok_or_else(place)?;
            let (typed, bytes) = self.typed(typed, shared, &place())?;
            end += bytes as u32;
            // The standard library has it for arrays up to this length only.
            has_default &= typed
                .rsplit("; ")
                .next()
                .and_then(length)
                .is_none_or(|count| count <= 32);
            let mark = if field.starts_with("reserved") {
                "_"
            } else {
                ""
            };
            writeln!(fields, "    pub {mark}{field}: {typed},")?;
        }
        if end as usize != of.size() {
            return Err(format!("struct {name}: there is padding at its end").into());
        }
        let derived = match (shared, has_default) {
            (true, _) => "Debug, Default",
            (false, true) => "Clone, Copy, Debug, Default, PartialEq, Eq, Hash",
            (false, false) => "Clone, Copy, Debug, PartialEq, Eq, Hash",
        };
        let twin = camel_case(&name);
        write!(
            self.text,
            "\n/// `struct {name}`.\n#[derive({derived})]\n#[repr(C)]\npub struct {twin} {{\n{fields}}}\n\
             \nconst _: () = assert!(size_of::<{twin}>() == {end});\n\
             #[allow(unsafe_code, reason = \"see the comment\")]\n\
             // SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.\n\
             unsafe impl Plain for {twin} {{}}\n"
        )?;
        self.written.push(name);
        Ok(())
    }

    /// A type in Rust's words, and how many bytes it takes.
    fn typed(&mut self, of: BtfType<'_>, shared: bool, place: &str) -> Result<(String, usize)> {
        if let Ok(alias) = Typedef::try_from(of) {
            let bytes = match name_of(of).as_str() {
                "__be16" => 2,
                "__be32" => 4,
                _ => return self.typed(alias.referenced_type(), shared, place),
            };
            return if shared {
                self.typed(alias.referenced_type(), shared, place)
            } else {
                // In network order it is no number.
                Ok((format!("[u8; {bytes}]"), bytes))
            };
        }
        if let Ok(array) = Array::try_from(of) {
            let count = array.capacity();
            let (item, bytes) = self.typed(array.contained_type(), shared, place)?;
            let typed = match item.strip_prefix("[u8; ") {
                Some(_) => format!("[u8; {}]", bytes * count),
                None => format!("[{item}; {count}]"),
            };
            return Ok((typed, bytes * count));
        }
        if let Ok(of) = Struct::try_from(of) {
            let name = name_of(*of);
            if shared && self.values.contains(&name) {
                return Ok((format!("[AtomicU32; {}]", of.size() / 4), of.size()));
            }
            self.add_struct(&of, shared)?;
            return Ok((camel_case(&name), of.size()));
        }
        if let Ok(int) = Int::try_from(of) {
            let letter = match int.encoding {
                IntEncoding::Signed if int.bits > 8 => 'i',
                _ => 'u',
            };
            let bits = int.bits;
            let typed = if shared {
                let atomic = format!("Atomic{}{bits}", letter.to_ascii_uppercase());
                self.atomics.insert(atomic.clone());
                atomic
            } else {
                format!("{letter}{bits}")
            };
            return Ok((typed, usize::from(bits) / 8));
        }
        let next = of.next_type().filter(|_| of.is_mod());
        match next {
            Some(next) => self.typed(next, shared, place),
            None => Err(format!("{place}: {:?} has no twin", of.kind()).into()),
        }
    }

    fn add_enum(&mut self, of: &Enum<'_>, named: bool) {
        let name = name_of(**of);
        let constants: Vec<(String, i64)> = of.iter().map(constant).collect();
        let shared = common_words(constants.iter().map(|(constant, _)| constant.as_str()));
        let typed = format!("u{}", of.size() * 8);
        let _ = write!(
            self.text,
            "\n/// `enum {name}`.\n#[allow(dead_code, reason = \"some are the programs' alone\")]\n\
             pub mod {name} {{\n"
        );
        for (constant, value) in &constants {
            let constant = &constant[shared..];
            let _ = writeln!(self.text, "    pub const {constant}: {typed} = {value};");
        }
        if named {
            let names = &constants[..constants.len() - 1];
            let _ = writeln!(
                self.text,
                "    pub const NAMES: [&str; {}] = [",
                names.len()
            );
            for (constant, _) in names {
                let _ = writeln!(
                    self.text,
                    "        {:?},",
                    constant[shared..].to_lowercase()
                );
            }
            self.text.push_str("    ];\n");
        }
        self.text.push_str("}\n");
    }
}

/// The length in the words of an array's type behind its `; `.
fn length(words: &str) -> Option<usize> {
    words.strip_suffix(']')?.parse().ok()
}

fn constant(of: EnumMember<'_>) -> (String, i64) {
    let name = of.name.unwrap_or_default().to_string_lossy().into_owned();
    (name, of.value)
}

/// How many letters all names begin with, in whole words, so that something of each is left.
fn common_words<'a>(names: impl Iterator<Item = &'a str> + Clone) -> usize {
    let first = names.clone().next().unwrap_or_default();
    let ends = first.match_indices('_').map(|(at, _)| at + 1);
    ends.filter(|end| names.clone().all(|name| name.starts_with(&first[..*end])))
        .last()
        .unwrap_or(0)
}
