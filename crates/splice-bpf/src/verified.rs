//! What the verifier has to process before the programs run.

use std::os::fd::AsFd as _;

use splice_base::error::Result;

use crate::load::load;
use crate::objects;
use crate::program::Program;

/// The most instructions that the verifier of Linux 6.1 may process for all programs together. The
/// kernel allows a million for each program (`BPF_COMPLEXITY_LIMIT_INSNS`), and any change to a
/// program can multiply its share. The limit is half of 278 085, what the programs needed in one
/// piece.
const MOST_INSTRUCTIONS: u32 = 278_085 / 2;

/// Every object that the library loads.
const OBJECTS: [(&str, &[u8]); 7] = [
    ("caller", objects::CALLER),
    ("clock", objects::CLOCK),
    ("gate", objects::GATE),
    ("hooks", objects::HOOKS),
    ("inspect", objects::INSPECT),
    ("redirect", objects::REDIRECT),
    ("segment", objects::SEGMENT),
];

/// How many entries a map gets if the engines set its size. A ring buffer needs whole pages.
const ENTRIES: u32 = 4096;

#[test]
fn the_verifier_goes_through_few_instructions() -> Result<()> {
    if !netlab::available(netlab::Need::Root) {
        return Ok(());
    }
    let mut sum = 0;
    for (name, bytes) in OBJECTS {
        let object = load(name, bytes, |opened| {
            for mut map in opened.0.maps_mut() {
                if map.max_entries() == 0 {
                    map.set_max_entries(ENTRIES).expect("sized");
                }
            }
            Ok(())
        })?;
        for program in object.0.progs_mut() {
            let fd = program.as_fd().try_clone_to_owned().expect("a descriptor");
            let program = Program::new(name, fd);
            let info = program.info().expect("told");
            let title: String = (info.name.iter())
                .map(|&byte| byte as u8 as char)
                .take_while(|&letter| letter != '\0')
                .collect();
            println!("{name:10} {title:16} {:7}", info.verified_insns);
            sum += info.verified_insns;
        }
    }
    println!("all together {sum:7}, at most {MOST_INSTRUCTIONS}");
    assert!(sum <= MOST_INSTRUCTIONS, "{sum}");
    Ok(())
}
