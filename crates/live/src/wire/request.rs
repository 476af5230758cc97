// SPDX-License-Identifier: Apache-2.0
//! Request: items of requests and answers that several verbs share. Layout: docs/format/live.md,
//! "Verbs".

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint, unzigzag, zigzag};
use esker_base::{Error, Kind};
use esker_fs::ops::AttributeChanges;

/// Maximum bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of a path, and of the target of a symbolic link.
pub const PATH_BYTES_MAX: usize = 4096;
/// Maximum bytes that one item reads or writes.
pub const TRANSFER_BYTES_MAX: usize = 1 << 20;
/// Maximum number of items of a change: a record of requests has room for this many if all fail.
pub const CHANGE_ITEMS_MAX: u16 = 2048;
/// Maximum bytes of the text of an error.
pub const ANSWER_TEXT_BYTES_MAX: usize = 1024;

/// Appends the outcome of one item: 0, or the kind of its error and at most `text_bytes_max` bytes
/// of its text.
pub fn put_status<T>(out: &mut Vec<u8>, outcome: &Result<T, Error>, text_bytes_max: usize) {
    match outcome {
        Ok(_) => out.push(0),
        Err(error) => {
            out.push(error.kind().exit_code());
            let text = error.to_string();
            let end = text.floor_char_boundary(text_bytes_max.min(ANSWER_TEXT_BYTES_MAX));
            put_bytes(out, &text.as_bytes()[..end]);
        }
    }
}

/// Reads the outcome of one item; the item's result follows if it succeeded.
///
/// # Errors
/// Damage if the bytes are not an outcome.
pub fn take_status(input: &mut WireInput) -> Result<Result<(), Error>, WireDamage> {
    let code = input.u8()?;
    if code == 0 {
        return Ok(Ok(()));
    }
    let text = input.bytes(ANSWER_TEXT_BYTES_MAX, "the text of an error")?;
    let kind = Kind::of_exit_code(code).ok_or(input.damage("a kind of error"))?;
    Ok(Err(Error::new(kind, String::from_utf8_lossy(text).into_owned())))
}

/// Bit of the kind of a file to make that also opens it.
pub const MAKE_OPENS: u8 = 1 << 7;

/// Device number of a directory to make whose names are spread over all seats.
pub const SPREAD_DEVICE: u64 = 1;

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteMode {
    /// True to write them only if the file ends at their offset, or has them there already.
    pub appends: bool,
    /// True to remove set-id bits also for a client of the superuser, who acts for another user.
    pub drops_set_id: bool,
}

impl WriteMode {
    /// Appends the mode to `out`.
    pub fn put(self, out: &mut Vec<u8>) {
        out.push(u8::from(self.appends) | u8::from(self.drops_set_id) << 1);
    }

    /// Reads a mode.
    ///
    /// # Errors
    /// Damage if the byte is not a mode.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        match input.u8()? {
            bits @ 0..4 => Ok(Self { appends: bits & 1 != 0, drops_set_id: bits & 2 != 0 }),
            _ => Err(input.damage("a way to write")),
        }
    }
}

/// What a range of a file becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeChange {
    /// True if it becomes zeros, without room in the store; false if bytes that were written stay.
    pub zeroes: bool,
    /// True if the file does not grow to its end.
    pub keeps_size: bool,
}

impl RangeChange {
    /// Appends the change to `out`.
    pub fn put(self, out: &mut Vec<u8>) {
        out.push(u8::from(self.zeroes) | u8::from(self.keeps_size) << 1);
    }

    /// Reads a change.
    ///
    /// # Errors
    /// Damage if the byte is not a change.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        match input.u8()? {
            bits @ 0..4 => Ok(Self { zeroes: bits & 1 != 0, keeps_size: bits & 2 != 0 }),
            _ => Err(input.damage("a change of a range")),
        }
    }
}

/// Changes of attributes on the wire: a mask of those that follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributeRequest {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last access, in nanoseconds since the Unix epoch.
    pub atime_ns: Option<i64>,
    /// Time of the last modification, in nanoseconds since the Unix epoch.
    pub mtime_ns: Option<i64>,
    /// True to set the time of the last access to the server's current time, instead of
    /// `atime_ns`.
    pub atime_now: bool,
    /// True to set the time of the last modification to the server's current time, instead of
    /// `mtime_ns`.
    pub mtime_now: bool,
}

impl AttributeRequest {
    /// Appends the changes to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        let time = |time: Option<i64>| time.map(|time| zigzag(time.cast_unsigned()));
        let fields = [
            self.mode.map(u64::from),
            self.uid.map(u64::from),
            self.gid.map(u64::from),
            self.size,
            time(self.atime_ns),
            time(self.mtime_ns),
        ];
        let mask: u8 =
            (0..).zip(&fields).map(|(bit, field)| u8::from(field.is_some()) << bit).sum();
        out.push(mask | u8::from(self.atime_now) << 6 | u8::from(self.mtime_now) << 7);
        fields.iter().flatten().for_each(|field| put_varint(out, *field));
    }

    /// Reads changes.
    ///
    /// # Errors
    /// Damage if the bytes are not changes.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        let mask = input.u8()?;
        if mask & (mask >> 2) & 0b11_0000 != 0 {
            return Err(input.damage("one time of each kind"));
        }
        let mut field = |bit: u8| (mask & 1 << bit != 0).then(|| input.varint()).transpose();
        let fields = [field(0)?, field(1)?, field(2)?, field(3)?, field(4)?, field(5)?];
        let narrow = |field: Option<u64>| field.map(u32::try_from).transpose();
        let narrow = |field| narrow(field).map_err(|_| input.damage("a number of 32 bits"));
        let time = |field: Option<u64>| field.map(|time| unzigzag(time).cast_signed());
        Ok(Self {
            mode: narrow(fields[0])?,
            uid: narrow(fields[1])?,
            gid: narrow(fields[2])?,
            size: fields[3],
            atime_ns: time(fields[4]),
            mtime_ns: time(fields[5]),
            atime_now: mask & 1 << 6 != 0,
            mtime_now: mask & 1 << 7 != 0,
        })
    }

    /// Returns the changes as a session takes them, at the time `now_ns`.
    #[must_use]
    pub fn changes(&self, now_ns: i64) -> AttributeChanges {
        AttributeChanges {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime_ns: self.atime_ns.or(self.atime_now.then_some(now_ns)),
            mtime_ns: self.mtime_ns.or(self.mtime_now.then_some(now_ns)),
            ctime_ns: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_back() {
        let mut out = Vec::new();
        put_status(&mut out, &Ok(()), 0);
        let long = Err(Error::new(Kind::NotEmpty, "é".repeat(900)));
        put_status::<()>(&mut out, &long, usize::MAX);
        let mut input = WireInput::new(&out);
        assert!(take_status(&mut input).expect("whole").is_ok());
        let error = take_status(&mut input).expect("whole").unwrap_err();
        assert_eq!(error.kind(), Kind::NotEmpty);
        assert!(input.end().is_ok());
        assert!(take_status(&mut WireInput::new(&[250, 0])).is_err());
    }

    #[test]
    fn changes_of_attributes_come_back() {
        let all = AttributeRequest {
            mode: Some(0o644),
            uid: Some(u32::MAX),
            gid: Some(0),
            size: Some(u64::MAX),
            atime_ns: Some(-1),
            mtime_ns: Some(i64::MAX),
            ..AttributeRequest::default()
        };
        let now = AttributeRequest {
            mode: Some(1),
            atime_now: true,
            mtime_now: true,
            ..AttributeRequest::default()
        };
        let no_mode = AttributeRequest { mode: None, ..all.clone() };
        for changes in [AttributeRequest::default(), no_mode, all, now] {
            let mut out = Vec::new();
            changes.put(&mut out);
            assert_eq!(AttributeRequest::take(&mut WireInput::new(&out)), Ok(changes));
            for cut in 0..out.len() {
                assert!(AttributeRequest::take(&mut WireInput::new(&out[..cut])).is_err());
            }
        }
        assert!(AttributeRequest::take(&mut WireInput::new(&[64 | 16, 0])).is_err());
    }
}
