// SPDX-License-Identifier: Apache-2.0
//! Text: formats names, times, sizes and modes for people and for programs.
//!
//! Names are bytes. In JSON a name is a string. A name that is not UTF-8 has U+FFFD in place of the
//! invalid bytes, and a second key with `_hex` appended holds its exact bytes in hexadecimal. On a
//! terminal, control characters and bytes that are not UTF-8 are escaped; elsewhere names are
//! written unchanged.

use std::fmt::Write;

use esker_fs::inode::timestamp;
use esker_fs::inode::{FileKind, Inode};
use serde_json::{Map, Value, json};

const NS_PER_SECOND: u64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// Stores `bytes` under `key`, and also under `key_hex` if they are not UTF-8.
pub fn put_bytes(object: &mut Map<String, Value>, key: &str, bytes: &[u8]) {
    object.insert(key.to_owned(), String::from_utf8_lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        object.insert(format!("{key}_hex"), hex(bytes).into());
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all");
        text
    })
}

/// A name in a form that a terminal can show on one line.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                letter if letter.is_control() => {
                    write!(text, "\\x{:02x}", u32::from(letter)).expect("a string takes all");
                }
                letter => text.push(letter),
            }
        }
        for byte in chunk.invalid() {
            write!(text, "\\x{byte:02x}").expect("a string takes all");
        }
    }
    text
}

/// Year, month and day of a day number since the Unix epoch.
/// Source: Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn date_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Day number of a date since the Unix epoch, if the date exists in these centuries.
pub fn day_of(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1600..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year_shifted = year - i64::from(month <= 2);
    let (era, year_of_era) = (year_shifted / 400, year_shifted % 400);
    let month_shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    (date_of(days) == (year, month, day)).then_some(days)
}

/// A time, in UTC, to the minute.
pub fn minute(ns: i64) -> String {
    let (seconds, _) = timestamp::parts(ns);
    let seconds_of_day = SECONDS_PER_DAY.cast_signed();
    let (year, month, day) = date_of(seconds.div_euclid(seconds_of_day));
    let minutes = seconds.rem_euclid(seconds_of_day) / 60;
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

/// A time, in UTC, to the nanosecond.
pub fn instant(ns: i64) -> String {
    let (seconds, nanoseconds) = timestamp::parts(ns);
    format!("{}:{:02}.{nanoseconds:09} UTC", minute(ns), seconds.rem_euclid(60))
}

/// A duration in a suitable unit.
pub fn age(ns: u64) -> String {
    let seconds = ns / NS_PER_SECOND;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / SECONDS_PER_DAY),
    }
}

/// A number of bytes, rounded for people.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 100.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A number with separators between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number and its noun, in the plural (`s`, `es` after `s`, or `ies` for `y`) unless the number is 1.
pub fn counted(number: u64, noun: &str) -> String {
    let number_text = count(number);
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("{number_text} {noun}"),
        Some(stem) => format!("{number_text} {stem}ies"),
        None if noun.ends_with('s') => format!("{number_text} {noun}es"),
        None => format!("{number_text} {noun}s"),
    }
}

/// A kind of file in JSON and for `find --type`.
pub const fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
        FileKind::Indexed => "indexed",
    }
}

/// Kind and permissions as `ls -l` shows them.
pub fn mode(inode: &Inode) -> String {
    let kind = match inode.kind() {
        Some(FileKind::Directory) => 'd',
        Some(FileKind::Symlink) => 'l',
        Some(FileKind::Fifo) => 'p',
        Some(FileKind::Socket) => 's',
        Some(FileKind::CharDevice) => 'c',
        Some(FileKind::BlockDevice) => 'b',
        Some(FileKind::Indexed) => 'i',
        Some(FileKind::File) | None => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letters) in [(6, 0o4000, "sS"), (3, 0o2000, "sS"), (0, 0o1000, "tT")] {
        let bits = inode.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (inode.mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => char::from(letters.as_bytes()[0]),
            (true, false) => char::from(letters.as_bytes()[1]),
        });
    }
    text
}

/// An entry at `path` as JSON; docs/guide/command.md describes it.
pub fn entry(path: &[u8], inode: &Inode) -> Map<String, Value> {
    let mut object = Map::new();
    put_bytes(&mut object, "path", path);
    object.insert("kind".into(), inode.kind().map(kind).into());
    object.insert("mode".into(), format!("{:04o}", inode.mode).into());
    for (key, value) in [
        ("uid", u64::from(inode.uid)),
        ("gid", u64::from(inode.gid)),
        ("nlink", u64::from(inode.nlink)),
        ("size", inode.size),
    ] {
        object.insert(key.into(), value.into());
    }
    for (key, ns) in
        [("mtime_ns", inode.mtime_ns), ("ctime_ns", inode.ctime_ns), ("atime_ns", inode.atime_ns)]
    {
        object.insert(key.into(), ns.into());
    }
    object.insert("id".into(), format!("{:032x}", inode.id).into());
    match inode.kind() {
        Some(FileKind::Symlink) => put_bytes(&mut object, "target", &inode.content),
        Some(FileKind::CharDevice | FileKind::BlockDevice) => {
            let numbers = (rustix::fs::major(inode.rdev), rustix::fs::minor(inode.rdev));
            object.insert("device".into(), json!([numbers.0, numbers.1]));
        }
        _ => {}
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_fs::inode::NameKind;

    #[test]
    fn dates_round_trip() {
        for day in (-100_000..60_000).step_by(17) {
            let (year, month, of_month) = date_of(day);
            assert_eq!(day_of(year, month, of_month), Some(day));
        }
        assert_eq!(minute(1_700_000_000_000_000_000), "2023-11-14 22:13");
        assert_eq!(day_of(2023, 2, 29), None);
        assert_eq!(instant(1), "1970-01-01 00:00:00.000000001 UTC");
        assert_eq!(instant(-1), "1969-12-31 23:59:59.999999999 UTC");
    }

    #[test]
    fn names_are_printable_and_lossless() {
        assert_eq!(printable(b"a\nb\xff\x1b"), "a\\nb\\xff\\x1b");
        let mut object = Map::new();
        put_bytes(&mut object, "name", b"a\xff");
        assert_eq!(Value::from(object), json!({"name": "a\u{fffd}", "name_hex": "61ff"}));
    }

    #[test]
    fn numbers_and_modes_are_readable() {
        assert_eq!((bytes(17).as_str(), bytes(1536).as_str()), ("17 B", "1.5 KiB"));
        let ages = [5, 600, 9_000, 300_000].map(|seconds| age(seconds * NS_PER_SECOND));
        assert_eq!(ages, ["5 s", "10 min", "2 h", "3 d"]);
        assert_eq!((count(7).as_str(), count(1_234_567).as_str()), ("7", "1,234,567"));
        let inode = Inode::new(NameKind::Is(FileKind::Directory), 0o1755, 0);
        assert_eq!(mode(&inode), "drwxr-xr-t");
        let inode = Inode::new(NameKind::Is(FileKind::File), 0o4644, 0);
        assert_eq!(mode(&inode), "-rwSr--r--");
    }
}
