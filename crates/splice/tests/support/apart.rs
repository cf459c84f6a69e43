//! A test that changes or burdens the network it runs in: it gets a namespace of its own.

use netlab::{Namespace, Need, available};

use super::alone::{TEST, test_name};

/// Runs `body` where only lo is, with these sysctls.
pub(crate) fn apart(sysctls: &[(&str, &str)], body: impl FnOnce() + Send) {
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("apart").expect("a namespace");
    for (name, value) in sysctls {
        namespace.set_sysctl(name, value).expect("a sysctl");
    }
    let test = test_name();
    namespace
        .enter(|| {
            TEST.set(Some(test));
            body();
        })
        .expect("entered");
}
