// SPDX-License-Identifier: Apache-2.0
//! Driver status: converts the status codes of a driver's functions to errors of the workbench.

use esker_base::{Error, Kind, Result};

const MESSAGE_BYTES: usize = 512;

const OK: i32 = 0;
pub const NOT_FOUND: i32 = 1;

/// The reason for which a function failed.
#[repr(C)]
pub struct DriverMessage {
    text: [u8; MESSAGE_BYTES],
}

impl DriverMessage {
    /// An empty text.
    pub const fn new() -> Self {
        Self { text: [0; MESSAGE_BYTES] }
    }
}

/// Fails unless `status` is OK, with the reason in `message`.
pub fn checked(status: i32, message: &DriverMessage) -> Result<()> {
    let kind = match status {
        OK => return Ok(()),
        NOT_FOUND => Kind::NotFound,
        2 => Kind::Invalid,
        3 => Kind::Unavailable,
        4 => Kind::Denied,
        5 => Kind::NoSpace,
        6 => Kind::Corrupt,
        7 => Kind::DeviceFailed,
        _ => {
            let what = format!("the driver answered {status}, which its interface does not have");
            return Err(Error::new(Kind::Invalid, what));
        }
    };
    let text = printable(&message.text);
    let reason = if text.is_empty() { "the driver gave no reason" } else { &text };
    let next = if kind == Kind::Unavailable { "; end the process that has it open" } else { "" };
    Err(Error::new(kind, format!("{reason}{next}")))
}

/// The text that ends at the first zero byte or with the buffer, without control characters.
pub fn printable(text: &[u8]) -> String {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let text = String::from_utf8_lossy(&text[..end]);
    text.trim_end().chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::driver::{DRIVER_VERSION, KEY_BYTES_MAX};
    use super::super::target::KeyValueDurability;
    use super::*;

    /// The constants here are those of the header that drivers are compiled with.
    #[test]
    fn constants_are_those_of_the_header() {
        let header = include_str!("../../../../../peers/key-value-driver.h");
        let defines = |name: &str, value: usize| {
            assert!(header.contains(&format!("#define ESKER_DRIVER_{name} {value}\n")), "{name}");
        };
        defines("VERSION", DRIVER_VERSION as usize);
        defines("KEY_BYTES_MAX", KEY_BYTES_MAX);
        defines("MESSAGE_BYTES", MESSAGE_BYTES);
        for (status, name, kind) in [
            (1, "NOT_FOUND", Kind::NotFound),
            (2, "INVALID", Kind::Invalid),
            (3, "BUSY", Kind::Unavailable),
            (4, "DENIED", Kind::Denied),
            (5, "NO_SPACE", Kind::NoSpace),
            (6, "CORRUPT", Kind::Corrupt),
            (7, "FAILED", Kind::DeviceFailed),
        ] {
            assert!(header.contains(&format!(" ESKER_DRIVER_{name} = {status},")), "{name}");
            let error = checked(status, &DriverMessage::new()).expect_err("a failure");
            assert_eq!(error.kind(), kind);
        }
        for level in
            [KeyValueDurability::None, KeyValueDurability::Async, KeyValueDurability::Always]
        {
            let name = level.to_string().to_uppercase();
            let line = format!(" ESKER_DRIVER_DURABILITY_{name} = {},", level as i32);
            assert!(header.contains(&line), "{line}");
        }
    }

    #[test]
    fn texts_are_bounded_and_have_no_control_characters() {
        let mut message = DriverMessage { text: [b'a'; MESSAGE_BYTES] };
        let error = checked(7, &message).expect_err("a failure");
        assert_eq!(error.context().len(), MESSAGE_BYTES);
        message.text[..8].copy_from_slice(b"a\x1b[2Jb\n\0");
        assert_eq!(checked(7, &message).expect_err("a failure").context(), "a\u{fffd}[2Jb");
    }
}
