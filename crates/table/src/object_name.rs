// SPDX-License-Identifier: Apache-2.0
//! Object names: the names of the objects of change sets in a store, formatted and parsed.
//!
//! Layout: docs/format/store.md. This file is the only one that writes or reads names under `set/`.
//! A name has one spelling: names that [`fmt::Display`] does not give are not parsed.

use std::fmt;
use std::str::FromStr;

use esker_base::{Error, Kind};

use crate::manifest::SetId;

/// Prefix of the names of all objects of change sets.
pub const SETS_FOLDER: &str = "set/";

/// A folder of a change set: a prefix of names, which ends in `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectFolder {
    /// Everything of the set.
    All(SetId),
    /// Its manifests.
    Manifests(SetId),
    /// Its write-ahead logs.
    Logs(SetId),
    /// Its tables.
    Tables(SetId),
    /// Its data logs.
    Data(SetId),
    /// Beats of its writer.
    Beats(SetId),
    /// All its indexed objects.
    AllIndexed(SetId),
    /// Its indexed objects that have this number in common.
    Indexed(SetId, u64),
}

/// The name of an object of a change set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectName {
    /// The manifest with this number.
    Manifest(SetId, u64),
    /// The write-ahead log with this number, whose high half is the writer's epoch.
    Log(SetId, u64),
    /// The table with this number.
    Table(SetId, u64),
    /// The data log with this number, whose high half is the writer's epoch.
    Data(SetId, u64),
    /// The beat with this number, whose high half is the writer's epoch.
    Beat(SetId, u64),
    /// An object among the indexed ones with this number, by its name there.
    Indexed(SetId, u64, String),
}

impl fmt::Display for ObjectFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SETS_FOLDER)?;
        match self {
            Self::All(set) => write!(f, "{set}/"),
            Self::Manifests(set) => write!(f, "{set}/manifest/"),
            Self::Logs(set) => write!(f, "{set}/wal/"),
            Self::Tables(set) => write!(f, "{set}/table/"),
            Self::Data(set) => write!(f, "{set}/data/"),
            Self::Beats(set) => write!(f, "{set}/beat/"),
            Self::AllIndexed(set) => write!(f, "{set}/imd/"),
            Self::Indexed(set, number) => write!(f, "{set}/imd/{number:016x}/"),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_epoch = |f: &mut fmt::Formatter<'_>, folder: ObjectFolder, number: &u64| {
            write!(f, "{folder}{:08x}-{:08x}", number >> 32, *number as u32)
        };
        match self {
            Self::Manifest(set, number) => {
                write!(f, "{}{number:016x}", ObjectFolder::Manifests(*set))
            }
            Self::Log(set, number) => by_epoch(f, ObjectFolder::Logs(*set), number),
            Self::Table(set, number) => write!(f, "{}{number:016x}", ObjectFolder::Tables(*set)),
            Self::Data(set, number) => by_epoch(f, ObjectFolder::Data(*set), number),
            Self::Beat(set, number) => by_epoch(f, ObjectFolder::Beats(*set), number),
            Self::Indexed(set, number, name) => {
                write!(f, "{}{name}", ObjectFolder::Indexed(*set, *number))
            }
        }
    }
}

impl FromStr for ObjectName {
    type Err = Error;

    /// Parses the whole name of an object.
    ///
    /// # Errors
    /// `Invalid` if it is not that of an object of a change set.
    fn from_str(text: &str) -> Result<Self, Error> {
        let name = parse(text).filter(|name| name.to_string() == text);
        name.ok_or_else(|| Error::new(Kind::Invalid, format!("{text}: no object of a change set")))
    }
}

/// Parses a name in any spelling of its numbers.
fn parse(text: &str) -> Option<ObjectName> {
    let (set, inside) = text.strip_prefix(SETS_FOLDER)?.split_once('/')?;
    let set: SetId = set.parse().ok()?;
    let (folder, name) = inside.split_once('/')?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let by_epoch = || {
        let (epoch, count) = name.split_once('-')?;
        let part = |text: &str| u32::from_str_radix(text, 16).ok();
        Some(u64::from(part(epoch)?) << 32 | u64::from(part(count)?))
    };
    Some(match folder {
        "manifest" => ObjectName::Manifest(set, number(name)?),
        "wal" => ObjectName::Log(set, by_epoch()?),
        "table" => ObjectName::Table(set, number(name)?),
        "data" => ObjectName::Data(set, by_epoch()?),
        "beat" => ObjectName::Beat(set, by_epoch()?),
        "imd" => {
            let (common, name) = name.split_once('/')?;
            ObjectName::Indexed(set, number(common)?, name.to_owned())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SET: SetId = SetId(0x3F2A);

    /// The names in docs/format/store.md, with numbers.
    #[test]
    fn names_are_those_of_the_format() {
        let number = 7 << 32 | 0x1B;
        let folder = "set/00000000000000000000000000003f2a";
        for (name, expected) in [
            (ObjectName::Manifest(SET, number), "manifest/000000070000001b"),
            (ObjectName::Log(SET, number), "wal/00000007-0000001b"),
            (ObjectName::Table(SET, number), "table/000000070000001b"),
            (ObjectName::Data(SET, number), "data/00000007-0000001b"),
            (ObjectName::Beat(SET, number), "beat/00000007-0000001b"),
            (ObjectName::Indexed(SET, number, "root".into()), "imd/000000070000001b/root"),
        ] {
            assert_eq!(name.to_string(), format!("{folder}/{expected}"));
        }
        for (prefix, expected) in [
            (ObjectFolder::All(SET), ""),
            (ObjectFolder::Manifests(SET), "manifest/"),
            (ObjectFolder::Logs(SET), "wal/"),
            (ObjectFolder::Tables(SET), "table/"),
            (ObjectFolder::Data(SET), "data/"),
            (ObjectFolder::Beats(SET), "beat/"),
            (ObjectFolder::AllIndexed(SET), "imd/"),
            (ObjectFolder::Indexed(SET, number), "imd/000000070000001b/"),
        ] {
            assert_eq!(prefix.to_string(), format!("{folder}/{expected}"));
        }
    }

    fn names() -> impl Strategy<Value = ObjectName> {
        (0..6u8, any::<u128>(), any::<u64>(), "[a-z0-9/.-]{0,12}").prop_map(
            |(kind, set, number, name)| {
                let set = SetId(set);
                match kind {
                    0 => ObjectName::Manifest(set, number),
                    1 => ObjectName::Log(set, number),
                    2 => ObjectName::Table(set, number),
                    3 => ObjectName::Data(set, number),
                    4 => ObjectName::Beat(set, number),
                    _ => ObjectName::Indexed(set, number, name),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn names_round_trip(name in names()) {
            prop_assert_eq!(name.to_string().parse::<ObjectName>().ok(), Some(name));
        }

        #[test]
        fn what_is_parsed_has_one_spelling(
            name in names(),
            at in any::<prop::sample::Index>(),
            by in "[a-zA-Z0-9/+-]{0,2}",
        ) {
            let mut text = name.to_string();
            let at = at.index(text.len());
            text.replace_range(at..=at, &by);
            if let Ok(parsed) = text.parse::<ObjectName>() {
                prop_assert_eq!(parsed.to_string(), text);
            }
        }
    }

    #[test]
    fn other_names_are_refused() {
        let set = "set/00000000000000000000000000003f2a";
        for other in [
            "",
            "set/",
            set,
            &format!("{set}/wal/00000007-0000001B"),
            &format!("{set}/wal/7-1b"),
            &format!("{set}/wal/000000070000001b"),
            &format!("{set}/table/+000000000000001"),
            &format!("{set}/imd/000000070000001b"),
            &format!("{set}/other/000000070000001b"),
            "set/3f2a/table/000000070000001b",
            "ref/00000000000000000000000000003f2a/session",
        ] {
            assert!(other.parse::<ObjectName>().is_err(), "{other}");
        }
    }
}
