// SPDX-License-Identifier: Apache-2.0
//! Extended attributes of files of a live namespace. The root has one more, unlisted, by which
//! commands find the mount ([`STATUS`]).

use esker_base::Kind;
use esker_fs::inode::xattr::{XATTR_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use esker_fs::ops::XattrSet;
use esker_live::client::{LiveFile, Request};
use fuser::Errno;

use super::live_state::LiveState;
use crate::control::STATUS;
use crate::node_table::ROOT;
use crate::xattr::{is_stored, xattr_condition};

impl LiveState {
    /// The value of an attribute.
    pub(super) fn xattr(&self, number: u64, attribute: &[u8]) -> Result<Vec<u8>, Errno> {
        if number == ROOT && attribute == STATUS.as_bytes() {
            return Ok(self.status.clone());
        }
        if !is_stored(attribute) {
            return Err(Errno::EOPNOTSUPP);
        }
        let file = self.node(number)?.reference();
        let answer = self.call(Request::xattr(&file.file(), attribute))?;
        let value =
            answer.only(|input| Ok(input.bytes(XATTR_VALUE_BYTES_MAX, "a value")?.to_vec()));
        value.map_err(|error| self.errno(&error))
    }

    /// The names of all attributes, each followed by a zero byte; those that only a superuser can
    /// read only for one.
    pub(super) fn xattr_names(&self, number: u64, is_superuser: bool) -> Result<Vec<u8>, Errno> {
        let file = self.node(number)?.reference();
        let answer = self.call(Request::xattr_names(&file.file()))?;
        let names = answer.only(|input| Ok(input.bytes(XATTR_BYTES_MAX, "names")?.to_vec()));
        let names = names.map_err(|error| self.errno(&error))?;
        let shown = names
            .split_inclusive(|byte| *byte == 0)
            .filter(|name| is_superuser || !name.starts_with(b"trusted."));
        Ok(shown.flatten().copied().collect())
    }

    pub(super) fn set_xattr(
        &self,
        number: u64,
        (attribute, value): (&[u8], &[u8]),
        flags: i32,
    ) -> Result<(), Errno> {
        let condition: XattrSet = xattr_condition(attribute, flags)?;
        let node = self.node(number)?;
        let file = node.reference();
        let set_at = |file: &LiveFile, condition| {
            self.change(Request::set_xattr(file, (attribute, value), condition))
        };
        let set = set_at(&file.file(), condition);
        let [done] = self.track_change(&[node.id], || self.call_all([set]))?;
        if done.as_ref().is_ok_and(|answer| answer.outcome().is_ok()) {
            // The first part has decided.
            self.change_other_parts(&node, |part| set_at(part, XattrSet::Any))?;
        }
        match done.and_then(|answer| answer.outcome()) {
            // Beyond the limit on a file's attributes, other file systems report a lack of space.
            Err(error) if error.kind() == Kind::TooLarge => Err(Errno::ENOSPC),
            set => set.map_err(|error| self.errno(&error)),
        }
    }

    pub(super) fn remove_xattr(&self, number: u64, attribute: &[u8]) -> Result<(), Errno> {
        if !is_stored(attribute) {
            return Err(Errno::EOPNOTSUPP);
        }
        let node = self.node(number)?;
        let remove_at = |file: &LiveFile| self.change(Request::remove_xattr(file, attribute));
        self.track_change(&[node.id], || {
            let [done] = self.call_all([remove_at(&node.reference().file())])?;
            self.done(done)
        })?;
        self.change_other_parts(&node, remove_at)
    }
}
