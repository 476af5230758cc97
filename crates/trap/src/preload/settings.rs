// SPDX-License-Identifier: Apache-2.0
//! Settings: the part of the library that differs from one supervisor to the next. The supervisor
//! writes it into its copy of the library, so programs that clear their environment have it, too.
//!
//! | bytes | content |
//! |---|---|
//! | 0–15 | [`MARK`], by which the supervisor finds the settings in the library |
//! | 16–23 | complement of the pass, little-endian; 0 until the supervisor has written it |
//! | 24–25 | length of the path, little-endian |
//! | 26– | the place at which the namespace is shown, without a zero byte |

/// Maximum length of a path in Linux, with the zero byte.
pub const PATH_BYTES_MAX: usize = 4096;

/// Begins the settings.
pub const MARK: [u8; 16] = *b"esker preload 01";

/// Bytes before the path.
const HEADER_BYTES: usize = 26;

/// Size of the settings.
pub const SETTINGS_BYTES: usize = HEADER_BYTES + PATH_BYTES_MAX;

/// What the library knows of its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a> {
    /// Complement of the sixth argument of system calls that the kernel carries out without the
    /// supervisor.
    pub pass_complement: u64,
    /// The directory at which the namespace is shown, absolute and without symbolic links.
    pub place: &'a [u8],
}

impl<'a> Settings<'a> {
    /// Reads settings; `None` if the supervisor has written none.
    #[cfg(any(test, esker_preload))]
    pub fn decode(bytes: &'a [u8; SETTINGS_BYTES]) -> Option<Self> {
        let pass_complement = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
        let length = u16::from_le_bytes(bytes.get(24..26)?.try_into().ok()?);
        let place = bytes.get(HEADER_BYTES..HEADER_BYTES + usize::from(length))?;
        (pass_complement != 0).then_some(Self { pass_complement, place })
    }

    /// Writes settings; `None` if the path is too long.
    pub fn encode(&self) -> Option<[u8; SETTINGS_BYTES]> {
        let length = u16::try_from(self.place.len()).ok()?;
        let mut bytes = [0; SETTINGS_BYTES];
        bytes.get_mut(..16)?.copy_from_slice(&MARK);
        bytes.get_mut(16..24)?.copy_from_slice(&self.pass_complement.to_le_bytes());
        bytes.get_mut(24..26)?.copy_from_slice(&length.to_le_bytes());
        bytes.get_mut(HEADER_BYTES..HEADER_BYTES + self.place.len())?.copy_from_slice(self.place);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let settings = Settings { pass_complement: 7 << 40 | 9, place: b"/a/b" };
        let bytes = settings.encode().expect("a short path");
        assert_eq!(Settings::decode(&bytes), Some(settings));
        assert_eq!(Settings::decode(&[0; SETTINGS_BYTES]), None);
        let long = [b'x'; PATH_BYTES_MAX + 1];
        assert_eq!(Settings { place: &long, ..settings }.encode(), None);
    }
}
