// SPDX-License-Identifier: Apache-2.0
//! Target of a key-value store: `driver:LIBRARY:DIRECTORY?options=NAME&durability=LEVEL`.

use std::fmt;
use std::path::PathBuf;

use esker_base::{Error, Kind, Result};

/// Begins targets that a driver serves.
pub const DRIVER_PREFIX: &str = "driver:";

const EXPECTED: &str = "expected driver:LIBRARY:DIRECTORY, and after a ? options=NAME and \
                        durability=none, async or always, with & between them";

/// A database as the user names it: its driver, its directory, and the settings for opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValueTarget {
    /// The driver; has a `/`, so that the library is searched nowhere.
    pub library: PathBuf,
    /// The directory of the database.
    pub directory: PathBuf,
    /// The driver's options: `default`, `tuned`, or another name that it knows.
    pub options: String,
    /// The point at which writes survive.
    pub durability: KeyValueDurability,
}

/// The event that a write survives; the numbers are those of the driver interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValueDurability {
    /// Only the closing of the database.
    None = 0,
    /// The death of the process, at once or soon.
    Async = 1,
    /// A loss of power.
    Always = 2,
}

impl KeyValueDurability {
    const ALL: [(&str, Self); 3] =
        [("none", Self::None), ("async", Self::Async), ("always", Self::Always)];
}

impl fmt::Display for KeyValueDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find_map(|(name, level)| (level == self).then_some(*name));
        f.write_str(name.expect("all are named"))
    }
}

impl KeyValueTarget {
    /// Parses `target`.
    ///
    /// # Errors
    /// `Invalid` says what is wrong and what is expected.
    pub fn parse(target: &str) -> Result<Self> {
        let wrong = |what: &str| Err(Error::new(Kind::Invalid, format!("{target}: {what}")));
        let Some(rest) = target.strip_prefix(DRIVER_PREFIX) else { return wrong(EXPECTED) };
        let (paths, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let Some((library, directory)) = paths.split_once(':') else { return wrong(EXPECTED) };
        if library.is_empty() || directory.is_empty() || paths.contains('\0') {
            return wrong(EXPECTED);
        }
        if !library.contains('/') {
            return wrong(&format!(
                "the library needs a path with a /, such as ./{library}: it is searched nowhere"
            ));
        }
        let mut parsed = Self {
            library: library.into(),
            directory: directory.into(),
            options: "default".to_owned(),
            durability: KeyValueDurability::Async,
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some(("options", name)) if !name.is_empty() && !name.contains('\0') => {
                    parsed.options = name.to_owned();
                }
                Some(("durability", name)) => {
                    let found = KeyValueDurability::ALL.iter().find(|(known, _)| *known == name);
                    let Some((_, level)) = found else { return wrong(EXPECTED) };
                    parsed.durability = *level;
                }
                _ => return wrong(EXPECTED),
            }
        }
        Ok(parsed)
    }
}

/// The target that parses to the same; leaves out defaults.
impl fmt::Display for KeyValueTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (library, directory) = (self.library.display(), self.directory.display());
        write!(f, "{DRIVER_PREFIX}{library}:{directory}")?;
        let mut mark = '?';
        if self.options != "default" {
            write!(f, "{mark}options={}", self.options)?;
            mark = '&';
        }
        if self.durability != KeyValueDurability::Async {
            write!(f, "{mark}durability={}", self.durability)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_and_printed() {
        let target = |text: &str| KeyValueTarget::parse(text).expect(text);
        let plain = target("driver:./a.so:/scratch/d:b");
        assert_eq!(plain.library, PathBuf::from("./a.so"));
        assert_eq!(plain.directory, PathBuf::from("/scratch/d:b"));
        assert_eq!(
            (plain.options.as_str(), plain.durability),
            ("default", KeyValueDurability::Async)
        );
        let full = target("driver:a/b.so:d?durability=none&options=tuned");
        assert_eq!((full.options.as_str(), full.durability), ("tuned", KeyValueDurability::None));
        for text in [
            "driver:/a.so:d",
            "driver:/a.so:d?options=tuned",
            "driver:/a.so:d?durability=always",
            "driver:/a.so:d?options=tuned&durability=none",
        ] {
            assert_eq!(target(text).to_string(), text);
        }
        assert_eq!(
            target("driver:/a.so:d?options=default&durability=async").to_string(),
            "driver:/a.so:d"
        );
        assert_eq!(target("driver:/a.so:d?").to_string(), "driver:/a.so:d");
    }

    #[test]
    fn mistakes_are_refused() {
        for text in [
            "here",
            "driver:",
            "driver:/a.so",
            "driver:/a.so:",
            "driver::d",
            "driver:a.so:d",
            "driver:/a.so:d\0",
            "driver:/a.so:d?tuned",
            "driver:/a.so:d?durability=sync",
            "driver:/a.so:d?options=",
            "driver:/a.so:d?size=3",
        ] {
            assert_eq!(KeyValueTarget::parse(text).expect_err(text).kind(), Kind::Invalid);
        }
    }
}
