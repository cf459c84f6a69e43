//! The mesh: whole frames from member to member, by the kernel and by user space.

/// Makes two tests of each function that takes an engine.
macro_rules! by_each_engine {
    ($($name:ident),* $(,)?) => {
        mod sockmap {$(
            #[test]
            fn $name() {
                if netlab::available(netlab::Need::Bpf) {
                    super::$name(splice::EngineName::Sockmap);
                }
            }
        )*}
        mod copy {$(
            #[test]
            fn $name() {
                super::$name(splice::EngineName::Copy);
            }
        )*}
    };
}

mod delivery;
mod every_frame;
mod limits;
mod program;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../support/random.rs"]
mod random;
mod reading;
mod stage;
mod traffic;
mod variants;
