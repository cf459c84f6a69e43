//! The arguments of `spliced mesh`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use splice::mesh::{Field, LONGEST_FRAME, Length};
use splice::{Address, EngineChoice};

use crate::access_log_args::AccessLogArgs;
use crate::sections::{self, as_help};
use crate::time_text::time;

/// Accept connections on LISTEN and hand frames from member to member, inside the kernel where that is possible.
///
/// Each connection becomes a member and gets an id, counted from 1; its first frame is a notice with that id.
/// From then on every frame names the id of the member that it is for. A frame that cannot be delivered is
/// answered with a notice: there is no such member, or too much is on its way to it. docs/mesh.md describes
/// notices, and how clients register, ask for names and join groups.
///
/// A field is written as width, byte order and offset in bytes: u32be@0, u16le@4, u8@6.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::MESH))]
pub(crate) struct MeshArgs {
    /// The address to accept connections on: TCP over IPv4 or IPv6.
    pub(crate) listen: Address,

    /// The field with the length of a frame. It counts what follows the header, which ends with the later of
    /// the two fields. With +N behind it (u32be@0+4), N bytes of the frame are not counted; +0 counts the
    /// whole frame.
    #[arg(long, value_name = "FIELD")]
    pub(crate) frame: Length,

    /// The field with the id of the destination.
    #[arg(long, value_name = "FIELD", default_value = "u32be@4")]
    pub(crate) destination: Field,

    /// What moves the frames: sockmap, the kernel without this process; copy, this process, which needs no rights; or
    /// auto, sockmap where the kernel and the rights allow it. With auto, the log says why it is copy.
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub(crate) engine: EngineChoice,

    /// The most bytes of a frame. A longer one ends its sender's connection.
    #[arg(long, value_name = "N", default_value_t = LONGEST_FRAME)]
    pub(crate) most_bytes: u32,

    /// Time for a frame to become complete, else its sender's connection ends.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) frame_timeout: Duration,

    /// The most bytes on the way to one member, as the kernel's memory counts. Frames beyond are refused.
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    pub(crate) member_bytes: u32,

    /// The most members; further clients wait in the listener's backlog.
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) members: u32,

    /// What clients are known by. With "number" or "name", the first frame of a client has to be a registration,
    /// with the id or the name that it wants; with "none", each becomes a member at once.
    #[arg(long, value_enum, default_value_t = Register::None)]
    pub(crate) register: Register,

    /// Time for a client to register.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "10s")]
    pub(crate) register_timeout: Duration,

    /// A registration needs one of the tokens in this file, one a line. Other users may not be able to read it. SIGHUP
    /// reads it again.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Let members send frames to groups: the last N+1 destinations. The last one is all members [default: no
    /// groups].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=65_535))]
    pub(crate) groups: Option<u32>,

    /// A member that has neither sent nor got a frame for this time has to leave [default: it may stay].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) idle_timeout: Option<Duration>,

    #[command(flatten)]
    pub(crate) access_log: AccessLogArgs,
}

/// What clients are known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Register {
    None,
    Number,
    Name,
}
