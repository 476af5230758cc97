// SPDX-License-Identifier: Apache-2.0
//! Settings: the part of the library that differs from one recording to the next. The recorder writes it into
//! its copy of the library, so programs that clear their environment have it, too.
//!
//! | bytes | content |
//! |---|---|
//! | 0–15 | [`MARK`], by which the recorder finds the settings in the library |
//! | 16– | the path of the log, and a zero byte |

/// Begins the settings.
pub const MARK: [u8; 16] = *b"esker capture 01";

/// Maximum length of a path in Linux, with the zero byte.
pub const PATH_BYTES_MAX: usize = 4096;

/// Size of the settings.
pub const SETTINGS_BYTES: usize = MARK.len() + PATH_BYTES_MAX;

/// The settings of a recording in the log at `path`; `None` if the path is too long.
#[cfg(not(esker_capture))]
pub fn encode(path: &[u8]) -> Option<[u8; SETTINGS_BYTES]> {
    let mut bytes = [0; SETTINGS_BYTES];
    bytes[..MARK.len()].copy_from_slice(&MARK);
    let (room, _) = bytes[MARK.len()..].split_at_mut(PATH_BYTES_MAX - 1);
    room.get_mut(..path.len())?.copy_from_slice(path);
    Some(bytes)
}
