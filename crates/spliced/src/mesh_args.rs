//! The arguments of `spliced mesh`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use splice::mesh::{Field, Framing, LONGEST_FRAME, Length};
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
    ///
    /// Or until:BYTE, the byte that ends a frame instead: a character of ASCII, or a number such as until:0x0a. The first one
    /// behind the destination counts. It cannot be a hexadecimal digit, in which notices are written then, and there are no
    /// registrations and groups, whose frames may have any byte.
    #[arg(long, value_name = "SPEC")]
    pub(crate) frame: FrameSpec,

    /// The field with the id of the destination.
    #[arg(long, value_name = "FIELD", default_value = "u32be@4")]
    pub(crate) destination: Field,

    /// What moves the frames: sockmap, the kernel without this process; copy, this process, which needs no rights; or
    /// auto, sockmap where the kernel and the rights allow it. With auto, the log says why it is copy.
    #[arg(long, value_name = "ENGINE", default_value = "auto")]
    pub(crate) engine: EngineChoice,

    /// The most bytes of a frame. A longer one ends its sender's connection [default: 65536, or 682 with until:BYTE, since
    /// each of its bytes may come in a packet of its own].
    #[arg(long, value_name = "N")]
    pub(crate) most_bytes: Option<u32>,

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

/// How a frame ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameSpec {
    Length(Length),
    Until(u8),
}

impl FromStr for FrameSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(byte) = text.strip_prefix("until:") else {
            let length = text.parse().map(Self::Length);
            return length.map_err(|error: splice::Error| error.to_string());
        };
        let number = byte.strip_prefix("0x").map(|it| u8::from_str_radix(it, 16));
        match (number, byte.as_bytes()) {
            (Some(Ok(byte)), _) => Ok(Self::Until(byte)),
            (None, [byte]) if byte.is_ascii() => Ok(Self::Until(*byte)),
            _ => Err(format!(
                "{byte:?} is not one byte; write a character of ASCII, or its number such as until:0x0a"
            )),
        }
    }
}

impl fmt::Display for FrameSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "frames with their length in {}", length.field),
            Self::Until(byte) => write!(f, "frames up to the byte {byte:#04x}"),
        }
    }
}

/// The most bytes of a frame with a delimiter: as many as the default of `--member-bytes` has packets for.
const LONGEST_DELIMITED: u32 = 682;

impl MeshArgs {
    /// How frames look.
    ///
    /// # Errors
    /// If no frame can look like that.
    pub(crate) fn framing(&self) -> splice::Result<Framing> {
        let most_bytes = |default| self.most_bytes.unwrap_or(default);
        match self.frame {
            FrameSpec::Length(length) => {
                Framing::new(length, self.destination, most_bytes(LONGEST_FRAME))
            }
            FrameSpec::Until(byte) => {
                Framing::delimited(byte, self.destination, most_bytes(LONGEST_DELIMITED))
            }
        }
    }
}
