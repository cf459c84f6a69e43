//! Who may connect to a socket file, and how that changes: as a whole, or not at all.
//!
//! ```text
//! checked ──▶ narrowed ──▶ widened
//!                 │            │ something fails
//!                 └─────┬──────┘
//!                       ▼
//!                    restored
//! ```
//!
//! Meanwhile nobody may connect who may neither before nor afterwards. All files of a reload are checked before the first
//! one is changed, and narrowed before the first one is widened.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use rustix::fs::{
    AtFlags, Gid, Mode, Uid, XattrFlags, chmod, chownat, fstat, getxattr, removexattr, setxattr,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

use crate::file_access::{FileAccess, FileMode};
use crate::resource_limit::words;

/// Of a mode, without the type.
const PERMISSIONS: u32 = 0o7777;

/// The access control list, in the kernel's form (`posix_acl_xattr_header`).
const LIST: &str = "system.posix_acl_access";

/// The most bytes of an extended attribute (`XATTR_SIZE_MAX`).
const LIST_MOST_BYTES: usize = 65536;

/// A file that stays open, whatever becomes of its path.
#[derive(Debug)]
pub(super) struct PinnedFile {
    pub(super) path: PathBuf,
    /// Keeps the inode. Otherwise a file that takes the path could have the number of a former one.
    pub(super) pin: OwnedFd,
}

impl PinnedFile {
    /// A path that leads to the file. Without /proc there is none.
    pub(super) fn pinned_path(&self) -> Option<PathBuf> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.pin.as_raw_fd()));
        path.exists().then_some(path)
    }

    /// Makes the user who runs this process its owner.
    pub(super) fn take_back(&self) -> Result<()> {
        set_owner(self, geteuid().as_raw())
    }

    fn path_to_change(&self) -> Result<PathBuf> {
        self.pinned_path().with_context(|| {
            format!(
                "the mode of {} cannot be set without /proc; mount it, or leave mode out",
                self.path.display()
            )
        })
    }
}

/// What decides who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Access {
    mode: u32,
    owner: u32,
    group: u32,
    /// `None` as well if there is no /proc to ask.
    list: Option<Vec<u8>>,
}

impl Access {
    pub(super) fn of(file: &PinnedFile) -> Result<Self> {
        Self::read(file).map_err(|errno| {
            anyhow!(
                "who may connect to {} cannot be found out: {}",
                file.path.display(),
                words(errno)
            )
        })
    }

    pub(super) fn without_bits(self, bits: u32) -> Self {
        let mode = self.mode & !bits;
        Self { mode, ..self }
    }

    pub(super) fn with_bits(self, bits: u32) -> Self {
        let mode = self.mode | bits;
        Self { mode, ..self }
    }

    fn read(file: &PinnedFile) -> Result<Self, Errno> {
        let stat = fstat(&file.pin)?;
        Ok(Self {
            mode: stat.st_mode & PERMISSIONS,
            owner: stat.st_uid,
            group: stat.st_gid,
            list: list_of(file)?,
        })
    }

    /// From `self`: what both leave open stays, and what only `wanted` leaves open goes back to `made`.
    fn changed(&self, made: &Self, former: FileAccess, wanted: FileAccess) -> Self {
        let (mode, list) = match (former.mode, wanted.mode) {
            // A list would let others in, and what the mode says of the group would only be its mask.
            (_, Some(mode)) => (FileMode::bits(mode), None),
            (Some(_), None) => (made.mode, made.list.clone()),
            (None, None) => (self.mode, self.list.clone()),
        };
        let number = |former: Option<u32>, wanted: Option<u32>, made, now| {
            let otherwise = if former.is_some() { made } else { now };
            wanted.unwrap_or(otherwise)
        };
        Self {
            mode,
            owner: number(former.owner, wanted.owner, made.owner, self.owner),
            group: number(former.group, wanted.group, made.group, self.group),
            list,
        }
    }

    fn has_other_bits(&self, other: &Self) -> bool {
        self.mode != other.mode || self.list != other.list
    }
}

/// A change that can be made, as far as that can be known.
#[derive(Debug)]
pub(crate) struct AccessChange<'a> {
    file: &'a PinnedFile,
    before: Access,
    after: Access,
}

impl<'a> AccessChange<'a> {
    /// # Errors
    /// If this process lacks a right.
    pub(super) fn checked(
        file: &'a PinnedFile,
        made: &Access,
        former: FileAccess,
        wanted: FileAccess,
    ) -> Result<Self> {
        let before = Access::of(file)?;
        let after = before.changed(made, former, wanted);
        let held = Held::now();
        let is_own = before.owner == geteuid().as_raw();
        if before.has_other_bits(&after) {
            match is_own || held.may_change_any {
                // The right may be there and the file system read-only, or the system call forbidden.
                true => set_mode(file, before.mode)?,
                false if held.may_give_away => drop(file.path_to_change()?),
                false => return Err(why_not_mode(Errno::PERM, file, after.mode, before.owner)),
            }
        }
        if before.group != after.group
            && !held.may_give_away
            && !(is_own && is_in_group(after.group))
        {
            return Err(why_not_group(Errno::PERM, &file.path, after.group));
        }
        if before.owner != after.owner && !held.may_give_away {
            return Err(why_not_owner(Errno::PERM, &file.path, after.owner));
        }
        Ok(Self {
            file,
            before,
            after,
        })
    }
}

/// Makes all changes and does `last`, or makes none.
///
/// # Errors
/// Why one cannot be made, or that of `last`, and what could not be restored.
pub(crate) fn change_access(
    changes: &[AccessChange<'_>],
    last: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let narrowed = changes
        .iter()
        .try_for_each(|change| narrow(change.file, &change.after));
    let changed = narrowed.and_then(|()| {
        changes
            .iter()
            .try_for_each(|change| widen(change.file, &change.after))
    });
    let Err(error) = changed.and_then(|()| last()) else {
        return Ok(());
    };
    let restored = changes
        .iter()
        .map(|change| {
            narrow(change.file, &change.before)?;
            widen(change.file, &change.before)
        })
        // Each of them, whatever becomes of the others.
        .fold(Ok(()), Result::and);
    match restored {
        Ok(()) => Err(error),
        Err(left) => Err(error.context(format!(
            "the access to a socket file could not be restored ({left:#}), so check its mode, owner and group"
        ))),
    }
}

/// Takes from everybody what `to` does not allow.
fn narrow(file: &PinnedFile, to: &Access) -> Result<()> {
    let now = Access::of(file)?;
    let held = Held::now();
    let user = geteuid().as_raw();
    if now.has_other_bits(to) {
        if now.owner != user && !held.may_change_any {
            // With CAP_CHOWN alone, only its owner may change the mode.
            file.take_back()?;
        }
        let both = now.mode & to.mode;
        if both != now.mode {
            set_mode(file, both)?;
        }
    }
    if now.group != to.group {
        set_group(file, to.group)?;
    }
    if now.owner != to.owner && held.may_change_any {
        set_owner(file, to.owner)?;
    }
    Ok(())
}

/// Gives everybody what `to` allows.
fn widen(file: &PinnedFile, to: &Access) -> Result<()> {
    if Access::of(file)?.list != to.list {
        set_list(file, to.list.as_deref())?;
    }
    // A list brings a mode along.
    let now = Access::of(file)?;
    if now.mode != to.mode {
        set_mode(file, to.mode)?;
    }
    // Last: who gives the file away may lose the right to do the rest.
    if now.owner != to.owner {
        set_owner(file, to.owner)?;
    }
    Ok(())
}

/// The rights of this thread.
struct Held {
    /// CAP_CHOWN
    may_give_away: bool,
    /// CAP_FOWNER
    may_change_any: bool,
}

impl Held {
    fn now() -> Self {
        let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        Self {
            may_give_away: effective.contains(CapabilitySet::CHOWN),
            may_change_any: effective.contains(CapabilitySet::FOWNER),
        }
    }
}

fn is_in_group(group: u32) -> bool {
    let group = Gid::from_raw(group);
    getegid() == group || getgroups().is_ok_and(|groups| groups.contains(&group))
}

fn list_of(file: &PinnedFile) -> Result<Option<Vec<u8>>, Errno> {
    let Some(path) = file.pinned_path() else {
        return Ok(None);
    };
    let mut list = vec![0; LIST_MOST_BYTES];
    match getxattr(path, LIST, &mut list) {
        Ok(length) => {
            list.truncate(length);
            Ok(Some(list))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn set_list(file: &PinnedFile, list: Option<&[u8]>) -> Result<()> {
    let path = file.path_to_change()?;
    let set = match list {
        Some(list) => setxattr(path, LIST, list, XattrFlags::empty()),
        None => removexattr(path, LIST),
    };
    match set {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => bail!(
            "cannot change the access control list of {}, which could let others connect: {}; remove the default list of \
             its directory with 'setfacl -k'",
            file.path.display(),
            words(errno)
        ),
    }
}

fn set_mode(file: &PinnedFile, mode: u32) -> Result<()> {
    // fchmod(2) refuses a descriptor that is only a path, and a path could lead elsewhere.
    chmod(file.path_to_change()?, Mode::from_raw_mode(mode)).map_err(|errno| {
        let owner = fstat(&file.pin).map_or(0, |stat| stat.st_uid);
        why_not_mode(errno, file, mode, owner)
    })
}

fn set_owner(file: &PinnedFile, owner: u32) -> Result<()> {
    let flags = AtFlags::EMPTY_PATH;
    chownat(&file.pin, "", Some(Uid::from_raw(owner)), None, flags)
        .map_err(|errno| why_not_owner(errno, &file.path, owner))
}

fn set_group(file: &PinnedFile, group: u32) -> Result<()> {
    let flags = AtFlags::EMPTY_PATH;
    chownat(&file.pin, "", None, Some(Gid::from_raw(group)), flags)
        .map_err(|errno| why_not_group(errno, &file.path, group))
}

fn why_not_mode(errno: Errno, file: &PinnedFile, mode: u32, owner: u32) -> Error {
    let (shown, user) = (file.path.display(), geteuid().as_raw());
    match errno {
        Errno::PERM => anyhow!(
            "user {user}, who runs this process, may not change the mode of {shown}, which belongs to user {owner}; run it as \
             that user, or grant CAP_FOWNER"
        ),
        errno => anyhow!(
            "cannot set the mode of {shown} to {mode:04o}: {}",
            words(errno)
        ),
    }
}

fn why_not_group(errno: Errno, path: &Path, group: u32) -> Error {
    let (shown, user) = (path.display(), geteuid().as_raw());
    match errno {
        Errno::PERM if is_in_group(group) => anyhow!(
            "{shown} cannot have group {group}: the file does not belong to user {user}, who runs this process, and that user \
             has no CAP_CHOWN; grant it, or leave group out"
        ),
        Errno::PERM => anyhow!(
            "{shown} cannot have group {group}: user {user}, who runs this process, is not in it and has no CAP_CHOWN; add \
             that user to the group, grant the capability, or leave group out"
        ),
        errno => anyhow!("{shown} cannot have group {group}: {}", words(errno)),
    }
}

fn why_not_owner(errno: Errno, path: &Path, owner: u32) -> Error {
    let (shown, user) = (path.display(), geteuid().as_raw());
    match errno {
        Errno::PERM => anyhow!(
            "{shown} cannot belong to user {owner}: user {user}, who runs this process, has no CAP_CHOWN; grant it, or leave \
             owner out"
        ),
        errno => anyhow!("{shown} cannot belong to user {owner}: {}", words(errno)),
    }
}
