// SPDX-License-Identifier: Apache-2.0
//! Flat table: a reader of FlatBuffers in which every access is checked, for metadata of Arrow
//! files that somebody else may have written.
//!
//! A table begins with the distance to its vtable, which has the positions of the fields. Vectors
//! and texts begin with their length. All positions are relative, so each is checked where it is
//! followed; nothing is copied or allocated.
//! Layout: <https://flatbuffers.dev/internals/>.

/// The error for bytes that are not a FlatBuffer, with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatTableError {
    /// The position in the metadata.
    pub at: usize,
    /// The value expected there.
    pub expected: &'static str,
}

/// The result of an access.
pub type FlatResult<T> = Result<T, FlatTableError>;

/// A table in `bytes`.
#[derive(Clone, Copy, Debug)]
pub struct FlatTable<'a> {
    bytes: &'a [u8],
    at: usize,
    vtable: usize,
    vtable_bytes: usize,
}

impl<'a> FlatTable<'a> {
    /// The root of a finished buffer.
    ///
    /// # Errors
    /// If the bytes do not begin with the position of a table.
    pub fn root(bytes: &'a [u8]) -> FlatResult<Self> {
        Self::at(bytes, follow(bytes, 0)?)
    }

    /// The position of the table.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// The byte at `slot`; `absent` if the writer left the default out.
    ///
    /// # Errors
    /// If the field is outside the buffer.
    pub fn u8(&self, slot: usize, absent: u8) -> FlatResult<u8> {
        self.scalar::<1>(slot).map(|found| found.map_or(absent, |[byte]| byte))
    }

    /// The flag at `slot`.
    ///
    /// # Errors
    /// If the field is outside the buffer.
    pub fn flag(&self, slot: usize) -> FlatResult<bool> {
        self.u8(slot, 0).map(|byte| byte != 0)
    }

    /// The number of 16 bits at `slot`.
    ///
    /// # Errors
    /// If the field is outside the buffer.
    pub fn i16(&self, slot: usize) -> FlatResult<i16> {
        self.scalar::<2>(slot).map(|found| found.map_or(0, i16::from_le_bytes))
    }

    /// The number of 32 bits at `slot`.
    ///
    /// # Errors
    /// If the field is outside the buffer.
    pub fn i32(&self, slot: usize) -> FlatResult<i32> {
        self.scalar::<4>(slot).map(|found| found.map_or(0, i32::from_le_bytes))
    }

    /// The number of 64 bits at `slot`.
    ///
    /// # Errors
    /// If the field is outside the buffer.
    pub fn i64(&self, slot: usize) -> FlatResult<i64> {
        self.scalar::<8>(slot).map(|found| found.map_or(0, i64::from_le_bytes))
    }

    /// The table at `slot`.
    ///
    /// # Errors
    /// If the field leads outside the buffer.
    pub fn table(&self, slot: usize) -> FlatResult<Option<Self>> {
        let Some(at) = self.field(slot)? else { return Ok(None) };
        Self::at(self.bytes, follow(self.bytes, at)?).map(Some)
    }

    /// The tables of the vector at `slot`; none if it is absent.
    ///
    /// # Errors
    /// If the vector leads outside the buffer; the iterator fails for tables that do.
    pub fn tables(&self, slot: usize) -> FlatResult<impl Iterator<Item = FlatResult<Self>> + 'a> {
        let (from, count) = self.vector(slot, 4)?;
        let bytes = self.bytes;
        Ok((0..count).map(move |index| Self::at(bytes, follow(bytes, from + 4 * index)?)))
    }

    /// The structs of `WORDS` words of eight bytes of the vector at `slot`; none if it is absent.
    ///
    /// # Errors
    /// If the vector leads outside the buffer.
    pub fn structs<const WORDS: usize>(
        &self,
        slot: usize,
    ) -> FlatResult<impl ExactSizeIterator<Item = [u64; WORDS]> + 'a> {
        let (from, count) = self.vector(slot, 8 * WORDS)?;
        let items = &self.bytes[from..from + 8 * WORDS * count];
        Ok(items.chunks_exact(8 * WORDS).map(|item| {
            let mut words = [0; WORDS];
            for (word, bytes) in words.iter_mut().zip(item.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            }
            words
        }))
    }

    /// The text at `slot`; empty if it is absent.
    ///
    /// # Errors
    /// If the text leads outside the buffer or is not UTF-8.
    pub fn text(&self, slot: usize) -> FlatResult<&'a str> {
        let (from, count) = self.vector(slot, 1)?;
        std::str::from_utf8(&self.bytes[from..from + count])
            .map_err(|_| FlatTableError { at: from, expected: "UTF-8" })
    }

    fn at(bytes: &'a [u8], at: usize) -> FlatResult<Self> {
        let distance = i32::from_le_bytes(array(bytes, at, "a table")?);
        let outside = FlatTableError { at, expected: "a vtable inside the metadata" };
        let vtable = i64::try_from(at).ok().map(|at| at - i64::from(distance));
        let vtable = vtable.and_then(|at| usize::try_from(at).ok()).ok_or(outside)?;
        let vtable_bytes = usize::from(u16::from_le_bytes(array(bytes, vtable, "a vtable")?));
        let is_inside = vtable_bytes >= 4
            && vtable.checked_add(vtable_bytes).is_some_and(|end| end <= bytes.len());
        if !is_inside {
            return Err(outside);
        }
        Ok(Self { bytes, at, vtable, vtable_bytes })
    }

    /// The position of the field at `slot`; `None` if it is absent.
    fn field(&self, slot: usize) -> FlatResult<Option<usize>> {
        let entry = 4 + 2 * slot;
        if entry + 2 > self.vtable_bytes {
            return Ok(None);
        }
        let distance = u16::from_le_bytes(array(self.bytes, self.vtable + entry, "a vtable")?);
        Ok((distance != 0).then_some(self.at + usize::from(distance)))
    }

    fn scalar<const BYTES: usize>(&self, slot: usize) -> FlatResult<Option<[u8; BYTES]>> {
        let Some(at) = self.field(slot)? else { return Ok(None) };
        array(self.bytes, at, "a field inside the metadata").map(Some)
    }

    /// The position of the first item of the vector at `slot`, and their number.
    fn vector(&self, slot: usize, item_bytes: usize) -> FlatResult<(usize, usize)> {
        let Some(at) = self.field(slot)? else { return Ok((0, 0)) };
        let at = follow(self.bytes, at)?;
        let count = u32::from_le_bytes(array(self.bytes, at, "a vector")?) as usize;
        let from = at + 4;
        let end = count.checked_mul(item_bytes).and_then(|bytes| from.checked_add(bytes));
        if end.is_none_or(|end| end > self.bytes.len()) {
            return Err(FlatTableError { at, expected: "a vector inside the metadata" });
        }
        Ok((from, count))
    }
}

/// The position to which the offset at `at` leads.
fn follow(bytes: &[u8], at: usize) -> FlatResult<usize> {
    let distance = u32::from_le_bytes(array(bytes, at, "an offset")?) as usize;
    at.checked_add(distance)
        .filter(|target| *target < bytes.len())
        .ok_or(FlatTableError { at, expected: "an offset inside the metadata" })
}

fn array<const BYTES: usize>(
    bytes: &[u8],
    at: usize,
    expected: &'static str,
) -> FlatResult<[u8; BYTES]> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(FlatTableError { at, expected })
}

#[cfg(test)]
mod tests {
    use flatbuffers::FlatBufferBuilder;

    use super::*;

    fn buffer() -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let name = builder.create_string("name");
        let start = builder.start_table();
        builder.push_slot_always(4, name);
        builder.push_slot_always(8, 7_i64);
        builder.push_slot_always(10, -2_i16);
        let inner = builder.end_table(start);
        let items = builder.create_vector(&[inner, inner]);
        let start = builder.start_table();
        builder.push_slot_always(4, items);
        let root = builder.end_table(start);
        builder.finish_minimal(root);
        builder.finished_data().to_vec()
    }

    fn walk(bytes: &[u8]) -> FlatResult<Vec<(String, i64, i16, i32)>> {
        let root = FlatTable::root(bytes)?;
        let items = root.tables(0)?;
        items
            .map(|item| {
                let item = item?;
                Ok((item.text(0)?.to_owned(), item.i64(2)?, item.i16(3)?, item.i32(1)?))
            })
            .collect()
    }

    #[test]
    fn fields_are_read_and_absent_ones_are_zero() {
        let expected = ("name".to_owned(), 7, -2, 0);
        assert_eq!(walk(&buffer()), Ok(vec![expected.clone(), expected]));
    }

    #[test]
    fn truncation_and_changed_bytes_never_panic() {
        let whole = buffer();
        for length in 0..whole.len() {
            let _ = walk(&whole[..length]);
        }
        assert!(walk(&whole[..8]).is_err());
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = walk(&bytes);
            }
        }
    }
}
