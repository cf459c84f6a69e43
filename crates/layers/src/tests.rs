use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::check;

/// A workspace with one crate, `house`.
struct House(TempDir);

impl House {
    /// `order` is the crate's value in layers.toml; each file is a path in `src` with its text.
    fn new(order: &str, files: &[(&str, &str)]) -> Self {
        let house = Self(TempDir::new().unwrap());
        house.write("layers.toml", &format!("[order]\nhouse = {order}\n"));
        house.write("crates/house/Cargo.toml", "");
        for (path, text) in files {
            house.write(&format!("crates/house/src/{path}"), text);
        }
        house
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.0.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// The sentences, with files named from the workspace's root.
    fn check(&self) -> Vec<String> {
        let root = format!("{}/", self.0.path().display());
        let sentences = check(self.0.path(), &[]).unwrap();
        sentences
            .into_iter()
            .map(|it| it.replace(&root, ""))
            .collect()
    }

    fn root(&self) -> &Path {
        self.0.path()
    }
}

const TWO: &str = r#"[["upper"], ["lower"]]"#;
const MODULES: (&str, &str) = ("lib.rs", "mod lower; mod upper;");

/// Whether `lower`, with this text, has an arrow up to `upper`.
fn has_arrow_up(lower: &str, upper: &str) -> bool {
    let house = House::new(TWO, &[MODULES, ("lower.rs", lower), ("upper.rs", upper)]);
    let sentences = house.check();
    assert!(sentences.len() < 2, "{sentences:?}");
    sentences
        .iter()
        .any(|it| it.contains("an arrow up from layer lower to layer upper"))
}

#[test]
fn an_arrow_up_is_named_with_its_file_and_line() {
    let files = [
        MODULES,
        ("lower.rs", "\nuse crate::upper::Top;\nstruct Has(Top);"),
        ("upper.rs", "pub struct Top;"),
    ];
    assert_eq!(
        House::new(TWO, &files).check(),
        [
            "crates/house/src/lower.rs:2 uses `crate::upper::Top`: an arrow up from layer lower to \
             layer upper; move what it needs to a layer below lower, or invert the dependency"
        ]
    );
}

#[test]
fn an_arrow_down_is_fine() {
    let files = [
        MODULES,
        ("lower.rs", "pub struct Deep;"),
        ("upper.rs", "use crate::lower::Deep;\nstruct Has(Deep);"),
    ];
    assert_eq!(House::new(TWO, &files).check(), [""; 0]);
}

#[test]
fn modules_of_one_layer_do_not_use_one_another() {
    let files = [
        MODULES,
        ("lower.rs", "pub struct Deep;"),
        ("upper.rs", "use crate::lower::Deep;"),
    ];
    let sentences = House::new(r#"[["upper", "lower"]]"#, &files).check();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(sentences[0].contains("an arrow sideways from layer upper to layer lower"));
}

#[test]
fn every_way_to_name_an_item_is_an_arrow() {
    let top =
        "pub struct Top; pub fn top() {} pub const TOP: u8 = 1; pub mod inner { pub struct In; }";
    for lower in [
        "use crate::upper::{self, Top};",
        "use super::upper::Top as Renamed;",
        "use crate::{upper::{Top}};",
        "use crate::upper::*;",
        "fn f() { crate::upper::top() }",
        "fn f() { use super::upper; upper::top() }",
        "use crate::upper; fn f() { upper::top() }",
        "use crate::upper as above; fn f() -> above::Top { above::Top }",
        "struct Has(super::upper::Top);",
        "impl Clone for crate::upper::Top { fn clone(&self) -> Self { Self } }",
        "fn f() -> Vec<crate::upper::Top> { vec![] }",
        "fn f() { assert_eq!(1, crate::upper::TOP) }",
        "use crate::upper; fn f() { println!(\"{}\", upper::TOP) }",
        "macro_rules! m { () => { $crate::upper::top() } }",
        "#[arg(value_parser = crate::upper::top)] struct Has;",
        "use crate::upper::inner::In;",
        "use crate::upper::inner; fn f(_: inner::In) {}",
        "fn f() { crate::upper::made_by_a_macro() }",
        "mod within { use super::super::upper::Top; }",
        "mod within { fn f() { crate::upper::top() } }",
    ] {
        assert!(has_arrow_up(lower, top), "{lower}");
    }
}

#[test]
fn naming_a_module_or_another_crate_is_no_arrow() {
    for lower in [
        "use crate::upper;",
        "pub(in crate::upper) fn f() {}",
        "use ::upper::Top;",
        "use std::fs; fn f() { fs::read(\"upper::Top\"); }",
        "fn f(upper: &str) { println!(\"{}\", upper.top()) }",
        "/// See [`crate::upper::Top`].\nfn f() {}",
    ] {
        assert!(!has_arrow_up(lower, "pub struct Top;"), "{lower}");
    }
}

#[test]
fn what_only_tests_use_is_no_arrow() {
    for lower in [
        "#[cfg(test)] mod tests { use crate::upper::Top; }",
        "#[cfg(all(test, unix))] use crate::upper::Top;",
        "#[test] fn f() { crate::upper::top() }",
        "struct S; impl S { #[cfg(test)] fn f() { crate::upper::top() } }",
        "#[cfg(test)] mod a_file_that_does_not_exist;",
    ] {
        assert!(
            !has_arrow_up(lower, "pub struct Top; pub fn top() {}"),
            "{lower}"
        );
    }
}

#[test]
fn what_is_compiled_without_tests_is_an_arrow() {
    for lower in [
        "#[cfg(not(test))] use crate::upper::Top;",
        "#[cfg(any(test, unix))] use crate::upper::Top;",
    ] {
        assert!(has_arrow_up(lower, "pub struct Top;"), "{lower}");
    }
}

#[test]
fn a_re_export_leads_to_the_definition() {
    let house = |root: &str| {
        let files = [
            ("lib.rs", root),
            ("lower.rs", "use crate::Top; fn f(_: Top) {}"),
            ("upper.rs", "pub struct Top;"),
        ];
        House::new(TWO, &files).check()
    };
    for root in [
        "mod lower; mod upper; pub use upper::Top;",
        "mod lower; mod upper; pub use upper::*;",
    ] {
        let sentences = house(root);
        assert_eq!(sentences.len(), 1, "{root}: {sentences:?}");
        assert!(
            sentences[0].contains("from layer lower to layer upper"),
            "{sentences:?}"
        );
    }
}

#[test]
fn re_exports_in_a_circle_come_to_an_end() {
    assert!(!has_arrow_up(
        "pub use std::fs::*; pub use self::*; fn f(_: Nothing) {}",
        ""
    ));
}

#[test]
fn an_item_of_the_root_is_above_every_module() {
    let files = [
        ("lib.rs", "mod lower; mod upper; pub struct Root;"),
        ("lower.rs", "use crate::Root;"),
        ("upper.rs", ""),
    ];
    let sentences = House::new(TWO, &files).check();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(
        sentences[0].contains("an arrow up to the crate's root"),
        "{sentences:?}"
    );
}

#[test]
fn a_macro_is_found_where_it_is_defined() {
    assert!(has_arrow_up(
        "fn f() { top!() }",
        "macro_rules! top { () => {} }"
    ));
}

#[test]
fn a_macro_of_another_crate_is_no_function_of_the_same_name() {
    assert!(!has_arrow_up(
        "fn f(out: &mut String) { write!(out, \"x\"); }",
        "pub fn write() {}"
    ));
}

#[test]
fn a_cycle_of_two_files_is_a_knot() {
    let files = [
        ("lib.rs", "mod folder;"),
        ("folder/mod.rs", "mod left; mod right;"),
        (
            "folder/left.rs",
            "pub struct Left; use super::right::Right;",
        ),
        (
            "folder/right.rs",
            "pub struct Right; use super::left::Left;",
        ),
    ];
    let sentences = House::new(r#"[["folder"]]"#, &files).check();
    assert_eq!(
        sentences,
        [
            "crates/house/src/folder/left.rs:1 uses `super::right::Right`: part of the import cycle \
             folder::left -> folder::right -> folder::left; move what they share below them",
            "crates/house/src/folder/right.rs:1 uses `super::left::Left`: part of the import cycle \
             folder::right -> folder::left -> folder::right; move what they share below them",
        ]
    );
}

#[test]
fn a_cycle_of_a_file_and_its_submodules_is_fine() {
    let files = [
        ("lib.rs", "mod folder;"),
        (
            "folder.rs",
            "mod part; mod piece; pub struct Whole(part::Part, piece::Piece);",
        ),
        ("folder/part.rs", "pub struct Part; use super::Whole;"),
        (
            "folder/piece.rs",
            "pub struct Piece; use super::{Whole, part::Part};",
        ),
    ];
    assert_eq!(House::new(r#"[["folder"]]"#, &files).check(), [""; 0]);
}

#[test]
fn submodules_in_a_cycle_of_their_own_are_a_knot_whatever_their_parent_does() {
    let files = [
        ("lib.rs", "mod folder;"),
        (
            "folder.rs",
            "mod part; mod piece; pub struct Whole(part::Part, piece::Piece);",
        ),
        (
            "folder/part.rs",
            "pub struct Part; use super::{Whole, piece::Piece};",
        ),
        (
            "folder/piece.rs",
            "pub struct Piece; use super::{Whole, part::Part};",
        ),
    ];
    let sentences = House::new(r#"[["folder"]]"#, &files).check();
    assert_eq!(sentences.len(), 2, "{sentences:?}");
    assert!(sentences.iter().all(|it| !it.contains(" folder -> ")));
}

#[test]
fn a_module_without_a_layer_is_named() {
    let files = [MODULES, ("lower.rs", ""), ("upper.rs", "")];
    assert_eq!(
        House::new(r#"[["upper"]]"#, &files).check(),
        [r#"layers.toml gives house::lower no layer; add "lower" to "house""#]
    );
}

#[test]
fn a_layer_without_a_module_is_named() {
    let files = [("lib.rs", "mod lower;"), ("lower.rs", "")];
    assert_eq!(
        House::new(TWO, &files).check(),
        ["layers.toml gives house::upper a layer, but there is no such module; remove it"]
    );
}

#[test]
fn a_crate_without_an_order_is_named() {
    let house = House::new("[]", &[("lib.rs", "")]);
    house.write("crates/other/Cargo.toml", "");
    assert_eq!(
        house.check(),
        [r#"layers.toml does not order the modules of other; add "other" to it"#]
    );
}

#[test]
fn a_crate_that_is_not_checked_yet_is_passed_over_unless_asked_for() {
    let house = House::new("[]", &[("lib.rs", "")]);
    house.write("layers.toml", "unchecked = [\"house\"]\n[order]\n");
    house.write("crates/house/src/lib.rs", "mod left; mod right;");
    house.write(
        "crates/house/src/left.rs",
        "pub struct Left; use crate::right::Right;",
    );
    house.write(
        "crates/house/src/right.rs",
        "pub struct Right; use crate::left::Left;",
    );
    assert_eq!(house.check(), [""; 0]);
    assert_eq!(check(house.root(), &["house".to_owned()]).unwrap().len(), 2);
}

#[test]
fn an_order_within_a_module_is_kept_too() {
    let files = [
        ("lib.rs", "mod folder;"),
        ("folder/mod.rs", "mod left; mod right; use left::Left;"),
        ("folder/left.rs", "pub struct Left;"),
        ("folder/right.rs", "use super::left::Left;"),
    ];
    let order = "[[\"folder\"]]\n\"house::folder\" = [[\"left\"], [\"right\"]]";
    let sentences = House::new(order, &files).check();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(
        sentences[0].contains("from layer right to layer left"),
        "{sentences:?}"
    );
}

#[test]
fn an_inline_module_belongs_to_its_file_and_needs_no_layer() {
    let files = [
        (
            "lib.rs",
            "mod lower; mod upper; mod within { pub struct In; }",
        ),
        ("lower.rs", "use crate::within::In;"),
        ("upper.rs", "mod within { use crate::lower::Deep; }"),
    ];
    let sentences = House::new(TWO, &files).check();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(
        sentences[0].contains("an arrow up to the crate's root"),
        "{sentences:?}"
    );
}

#[test]
fn a_path_attribute_leads_to_the_file() {
    let files = [
        (
            "lib.rs",
            "#[path = \"elsewhere/low.rs\"] mod lower; mod upper;",
        ),
        ("elsewhere/low.rs", "mod part;"),
        ("elsewhere/part.rs", "use crate::upper::Top;"),
        ("upper.rs", "pub struct Top;"),
    ];
    let sentences = House::new(TWO, &files).check();
    assert_eq!(sentences.len(), 1, "{sentences:?}");
    assert!(
        sentences[0].starts_with("crates/house/src/elsewhere/part.rs:1 uses"),
        "{sentences:?}"
    );
}
