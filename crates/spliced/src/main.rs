//! spliced
fn main() {}
