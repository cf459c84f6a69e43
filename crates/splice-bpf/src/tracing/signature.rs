//! What the kernel's type information (BTF) says of a function.

use libbpf_rs::btf::types::{Func, FuncProto, Int, IntEncoding, Ptr};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, ReferencesType as _};

use crate::types::trace_handle;

/// What a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing.
    Nothing,
    /// A signed integer of so many bits.
    Signed(u8),
    /// An unsigned integer of so many bits.
    Unsigned(u8),
    /// Yes or no.
    Boolean,
    /// An address, which says nothing but whether it is null or an error.
    Pointer,
}

/// One function of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    /// The function's number in the kernel's type information.
    pub(super) id: u32,
    /// `trace_handle`, and the number of the argument.
    pub(super) handle: (u32, u8),
    pub(super) returned: Returned,
}

/// Which pointer says the most about a socket: the first of these that a function has.
const POINTERS: [(&str, u32); 7] = [
    ("sock", trace_handle::SOCK),
    ("sk_psock", trace_handle::PSOCK),
    ("socket", trace_handle::SOCKET),
    ("sk_buff", trace_handle::SKB),
    ("file", trace_handle::FILE),
    ("kiocb", trace_handle::KIOCB),
    ("io_kiocb", trace_handle::IO_KIOCB),
];

/// Functions whose types do not tell what they are called with.
const KNOWN: [(&str, (u32, u8)); 5] = [
    ("__sys_sendto", (trace_handle::FD, 0)),
    ("__sys_recvfrom", (trace_handle::FD, 0)),
    ("ksys_read", (trace_handle::FD, 0)),
    ("ksys_write", (trace_handle::FD, 0)),
    ("sk_psock_backlog", (trace_handle::WORK, 0)),
];

/// The kernel passes more arguments than these on the stack (`MAX_BPF_FUNC_REG_ARGS`).
const ARGUMENTS_MOST: usize = 5;

impl Signature {
    /// `None` if the kernel has no such function.
    pub(super) fn of(name: &str, kernel: &Btf<'_>) -> Option<Self> {
        let function: Func<'_> = kernel.type_by_name(name)?;
        let prototype = FuncProto::try_from(function.referenced_type()).ok()?;
        let arguments: Vec<_> = prototype
            .iter()
            .take(ARGUMENTS_MOST)
            .map(|argument| kernel.type_by_id::<BtfType<'_>>(argument.ty))
            .collect();
        let known = KNOWN.iter().find(|(known, _)| *known == name);
        let handle = known.map(|(_, handle)| *handle).or_else(|| {
            POINTERS.iter().find_map(|(pointee, handle)| {
                let leads = |argument: &Option<BtfType<'_>>| {
                    (argument.as_ref()).is_some_and(|argument| points_to(argument, pointee))
                };
                let number = arguments.iter().position(leads)?;
                Some((*handle, u8::try_from(number).ok()?))
            })
        });
        Some(Self {
            id: u32::from(function.type_id()),
            handle: handle.unwrap_or((trace_handle::NOTHING, 0)),
            returned: returned(&prototype),
        })
    }
}

fn points_to(argument: &BtfType<'_>, name: &str) -> bool {
    let Ok(pointer) = Ptr::try_from(argument.skip_mods_and_typedefs()) else {
        return false;
    };
    let pointee = pointer.referenced_type().skip_mods_and_typedefs();
    matches!(pointee.kind(), BtfKind::Struct | BtfKind::Fwd)
        && pointee.name().is_some_and(|found| found == name)
}

fn returned(prototype: &FuncProto<'_>) -> Returned {
    let of = prototype.referenced_type().skip_mods_and_typedefs();
    match of.kind() {
        BtfKind::Void => Returned::Nothing,
        BtfKind::Ptr => Returned::Pointer,
        BtfKind::Enum => Returned::Signed(32),
        BtfKind::Int => {
            Int::try_from(of).map_or(Returned::Unsigned(64), |int| match int.encoding {
                IntEncoding::Bool => Returned::Boolean,
                IntEncoding::Signed => Returned::Signed(int.bits),
                _ => Returned::Unsigned(int.bits),
            })
        }
        _ => Returned::Unsigned(64),
    }
}
