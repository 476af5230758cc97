// SPDX-License-Identifier: Apache-2.0
//! Settings: the part of the library that differs from one supervisor to the next. The supervisor
//! writes it into its copy of the library, so programs that clear their environment have it, too.
//!
//! | bytes | content |
//! |---|---|
//! | 0–15 | [`MARK`], by which the supervisor finds the settings in the library |
//! | 16–23 | complement of the pass, little-endian; 0 until the supervisor has written it |
//! | 24–27 | lengths of the two paths, little-endian |
//! | 28– | the place at which the namespace is shown, and the spool, without zero bytes |

/// Maximum length of a path in Linux, with the zero byte.
pub const PATH_BYTES_MAX: usize = 4096;

/// Begins the settings.
pub const MARK: [u8; 16] = *b"esker preload 01";

/// Bytes before the paths.
const HEADER_BYTES: usize = 28;

/// Size of the settings.
pub const SETTINGS_BYTES: usize = HEADER_BYTES + 2 * PATH_BYTES_MAX;

/// What the library knows of its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a> {
    /// Complement of the sixth argument of system calls that the kernel carries out without the
    /// supervisor.
    pub pass_complement: u64,
    /// The directory at which the namespace is shown, absolute and without symbolic links.
    pub place: &'a [u8],
    /// The directory of open files, likewise.
    pub spool: &'a [u8],
}

impl<'a> Settings<'a> {
    /// Reads settings; `None` if the supervisor has written none.
    #[cfg(any(test, esker_preload))]
    pub fn decode(bytes: &'a [u8; SETTINGS_BYTES]) -> Option<Self> {
        let pass_complement = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
        let length = |at: usize| {
            let bytes = bytes.get(at..at + 2)?.try_into().ok()?;
            Some(usize::from(u16::from_le_bytes(bytes)))
        };
        let (place, spool) = (length(24)?, length(26)?);
        let paths = bytes.get(HEADER_BYTES..)?;
        let place_bytes = paths.get(..place)?;
        let spool_bytes = paths.get(place..place + spool)?;
        let is_written = pass_complement != 0;
        is_written.then_some(Self { pass_complement, place: place_bytes, spool: spool_bytes })
    }

    /// Writes settings; `None` if a path is too long.
    pub fn encode(&self) -> Option<[u8; SETTINGS_BYTES]> {
        let mut bytes = [0; SETTINGS_BYTES];
        bytes.get_mut(..16)?.copy_from_slice(&MARK);
        bytes.get_mut(16..24)?.copy_from_slice(&self.pass_complement.to_le_bytes());
        let mut at = HEADER_BYTES;
        for (field, path) in [(24, self.place), (26, self.spool)] {
            let length = u16::try_from(path.len()).ok().filter(|_| path.len() < PATH_BYTES_MAX)?;
            bytes.get_mut(field..field + 2)?.copy_from_slice(&length.to_le_bytes());
            bytes.get_mut(at..at + path.len())?.copy_from_slice(path);
            at += path.len();
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let settings = Settings { pass_complement: 7 << 40 | 9, place: b"/a/b", spool: b"/tmp/c" };
        let bytes = settings.encode().expect("short paths");
        assert_eq!(Settings::decode(&bytes), Some(settings));
        assert_eq!(Settings::decode(&[0; SETTINGS_BYTES]), None);
        let long = [b'x'; PATH_BYTES_MAX];
        assert_eq!(Settings { place: &long, ..settings }.encode(), None);
    }
}
