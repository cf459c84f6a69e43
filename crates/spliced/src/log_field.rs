//! The fields of the access log.

use std::fmt;

use serde::Serialize;

/// A field of a line. In JSON it has its name in lower case, with underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Field {
    Time,
    Event,
    Id,
    UniqueId,
    Listener,
    Route,
    Client,
    Peer,
    Target,
    ServerName,
    Name,
    Backend,
    Server,
    Engine,
    WhyEngine,
    ClientToTargetDatagrams,
    ClientToTargetBytes,
    ClientToTargetDropped,
    TargetToClientDatagrams,
    TargetToClientBytes,
    TargetToClientDropped,
    ClientToTargetMessages,
    TargetToClientMessages,
    Outcome,
    DurationMs,
}

impl Field {
    /// All fields by their names, in the order in which a line has them.
    pub(crate) const ALL: [(&'static str, Self); 25] = [
        ("time", Self::Time),
        ("event", Self::Event),
        ("id", Self::Id),
        ("unique_id", Self::UniqueId),
        ("listener", Self::Listener),
        ("route", Self::Route),
        ("client", Self::Client),
        ("peer", Self::Peer),
        ("target", Self::Target),
        ("server_name", Self::ServerName),
        ("name", Self::Name),
        ("backend", Self::Backend),
        ("server", Self::Server),
        ("engine", Self::Engine),
        ("why_engine", Self::WhyEngine),
        ("client_to_target_datagrams", Self::ClientToTargetDatagrams),
        ("client_to_target_bytes", Self::ClientToTargetBytes),
        ("client_to_target_dropped", Self::ClientToTargetDropped),
        ("target_to_client_datagrams", Self::TargetToClientDatagrams),
        ("target_to_client_bytes", Self::TargetToClientBytes),
        ("target_to_client_dropped", Self::TargetToClientDropped),
        ("client_to_target_messages", Self::ClientToTargetMessages),
        ("target_to_client_messages", Self::TargetToClientMessages),
        ("outcome", Self::Outcome),
        ("duration_ms", Self::DurationMs),
    ];
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].0)
    }
}

/// Those of a line, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fields(Vec<Field>);

impl Fields {
    /// All of them. Without lines at the start, every line is one of an end.
    pub(crate) fn all(with_event: bool) -> Self {
        let all = Field::ALL.into_iter().map(|(_, field)| field);
        Self(
            all.filter(|field| with_event || *field != Field::Event)
                .collect(),
        )
    }

    /// # Errors
    /// The field that is in the list twice.
    pub(crate) fn of(list: Vec<Field>) -> Result<Self, Field> {
        let twice = (1..list.len()).find(|at| list[..*at].contains(&list[*at]));
        twice.map_or(Ok(()), |at| Err(list[at]))?;
        Ok(Self(list))
    }

    pub(crate) fn contains(&self, field: Field) -> bool {
        self.0.contains(&field)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Field> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_are_chosen_are_those_that_are_written() {
        for (at, (name, field)) in Field::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::json!(field), name);
            assert_eq!(field as usize, at, "{name}");
        }
        assert_eq!(Field::DurationMs as usize + 1, Field::ALL.len());
    }

    #[test]
    fn no_field_is_written_twice() {
        let twice = vec![Field::Id, Field::Time, Field::Id];
        assert_eq!(Fields::of(twice), Err(Field::Id));
        assert!(Fields::of(vec![Field::Id, Field::Time]).is_ok());
    }
}
