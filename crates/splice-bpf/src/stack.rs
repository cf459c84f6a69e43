//! How much stack a program takes together with the functions that it calls.

use std::collections::BTreeSet;

use libbpf_rs::libbpf_sys::{
    BPF_ADD, BPF_ALU64, BPF_CALL, BPF_DW, BPF_IMM, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MOV,
    BPF_PSEUDO_CALL, BPF_PSEUDO_FUNC, BPF_REG_10, BPF_ST, BPF_STX, BPF_X, bpf_insn,
};

/// `MAX_BPF_STACK`: what the frames of a chain of calls may take together.
pub(crate) const MOST_BYTES: u32 = 512;

/// What Linux 6.1 rounds each frame up to (`check_max_stack_depth`). Later ones round to 16 where they compile programs.
const FRAME_STEP: u32 = 32;

const CLASS: u8 = 0x07;
const LOAD_64: u8 = (BPF_LD | BPF_IMM | BPF_DW) as u8;
const CALL: u8 = (BPF_JMP | BPF_CALL) as u8;
const COPY: u8 = (BPF_ALU64 | BPF_MOV | BPF_X) as u8;
const ADD: u8 = (BPF_ALU64 | BPF_ADD | BPF_K) as u8;
const FRAME_POINTER: usize = BPF_REG_10 as usize;

/// What the deepest chain of calls of a loaded program takes, in bytes.
pub(crate) fn deepest(program: &[bpf_insn]) -> u32 {
    let mut starts: BTreeSet<_> = (0..program.len())
        .filter_map(|at| called(program, at))
        .collect();
    starts.insert(0);
    depth(program, &starts, 0)
}

/// Where the function starts that the instruction calls, or hands to a helper which calls it.
fn called(program: &[bpf_insn], at: usize) -> Option<usize> {
    let instruction = &program[at];
    let is_call = instruction.code == CALL && u32::from(instruction.src_reg()) == BPF_PSEUDO_CALL;
    let is_callback =
        instruction.code == LOAD_64 && u32::from(instruction.src_reg()) == BPF_PSEUDO_FUNC;
    (is_call || is_callback).then(|| {
        let next = i64::try_from(at).expect("few instructions") + 1;
        usize::try_from(next + i64::from(instruction.imm)).expect("within the program")
    })
}

fn depth(program: &[bpf_insn], starts: &BTreeSet<usize>, start: usize) -> u32 {
    let end = starts
        .range(start + 1..)
        .next()
        .map_or(program.len(), |next| *next);
    let callees = (start..end).filter_map(|at| called(program, at));
    let below = callees.map(|callee| depth(program, starts, callee)).max();
    frame(&program[start..end])
        .max(1)
        .next_multiple_of(FRAME_STEP)
        + below.unwrap_or(0)
}

/// How far below its frame pointer a function reads, writes or points to.
fn frame(function: &[bpf_insn]) -> u32 {
    // How far from the frame pointer each register points. Taken in the order of the instructions, whichever way they
    // are reached: the compiler computes such addresses right before it uses them.
    let mut points = [None; 11];
    points[FRAME_POINTER] = Some(0);
    let mut lowest = 0;
    for instruction in function {
        let [to, from] = [instruction.dst_reg(), instruction.src_reg()].map(usize::from);
        let off = i32::from(instruction.off);
        let touched = match (instruction.code, u32::from(instruction.code & CLASS)) {
            (COPY, _) => {
                points[to] = points[from];
                None
            }
            (ADD, _) => {
                points[to] = points[to].map(|at: i32| at + instruction.imm);
                points[to]
            }
            (_, BPF_LDX) => points[from].map(|at| at + off),
            (_, BPF_ST | BPF_STX) => points[to].map(|at| at + off),
            _ => None,
        };
        lowest = lowest.min(touched.unwrap_or(0));
    }
    lowest.unsigned_abs()
}
