//! Where a process may have its control socket.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Error, Result, anyhow};

use super::directories;
use super::name::Name;

/// The places to try, the best one first.
#[derive(Debug)]
pub(super) struct Candidates {
    places: Vec<Place>,
    /// Who has chosen the first one.
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// It is the only one.
    Operator,
    /// `$RUNTIME_DIRECTORY` has it.
    Unit,
    Nobody,
}

/// Where a socket may be.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) directory: PathBuf,
    pub(super) name: Name,
    pub(super) lock: String,
}

impl Candidates {
    /// At a path that somebody has given.
    pub(super) fn given(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)
            .with_context(|| format!("cannot use {} as a control socket", path.display()))?;
        let name = path.file_name().and_then(|name| name.to_str());
        let (Some(name), Some(directory)) = (name, path.parent()) else {
            return Err(anyhow!(
                "{} is no path of a file; choose another one for the control socket",
                path.display()
            ));
        };
        let place = Place {
            // /var/run is a symbolic link in many places.
            directory: directory
                .canonicalize()
                .unwrap_or_else(|_| directory.into()),
            name: Name::Given(name.into()),
            lock: format!(".{name}.lock"),
        };
        Ok(Self {
            places: vec![place],
            by: By::Operator,
        })
    }

    pub(super) fn of_this_user() -> Self {
        let by = match directories::of_unit() {
            Some(_) => By::Unit,
            None => By::Nobody,
        };
        Self::in_any_of(directories::of_this_user(), by)
    }

    fn in_any_of(directories: Vec<PathBuf>, by: By) -> Self {
        let place = |directory| Place {
            directory,
            name: Name::OfProcess,
            lock: "lock".into(),
        };
        Self {
            places: directories.into_iter().map(place).collect(),
            by,
        }
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    /// What to say of these failures, one a place: first of the place that somebody has chosen.
    pub(super) fn none_of(&self, failed: &[String]) -> Error {
        let (first, others) = match failed.split_first() {
            Some((first, others)) if self.by != By::Nobody => (first.as_str(), others),
            _ => (
                "nobody has chosen a directory for its control socket; choose one with --control PATH, or in a unit with \
                 RuntimeDirectory= ($RUNTIME_DIRECTORY)",
                failed,
            ),
        };
        let of = match self.by {
            By::Unit => " (that is $RUNTIME_DIRECTORY)",
            By::Operator | By::Nobody => "",
        };
        match others {
            [] => anyhow!("{first}{of}"),
            others => anyhow!("{first}{of}; tried as well: {}", others.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_the_chosen_place_from_being_used_comes_first() {
        let told = |by, failed: &[&str]| {
            let directories = vec!["/run/a".into(), "/run/b".into()];
            let failed: Vec<_> = failed.iter().map(ToString::to_string).collect();
            Candidates::in_any_of(directories, by)
                .none_of(&failed)
                .to_string()
        };
        assert_eq!(told(By::Operator, &["a is full"]), "a is full");
        assert_eq!(
            told(By::Unit, &["a is full", "b is not there"]),
            "a is full (that is $RUNTIME_DIRECTORY); tried as well: b is not there"
        );
        let told = told(By::Nobody, &["a is full", "b is not there"]);
        assert!(told.starts_with("nobody has chosen a directory"), "{told}");
        assert!(
            told.ends_with("; tried as well: a is full; b is not there"),
            "{told}"
        );
    }
}
