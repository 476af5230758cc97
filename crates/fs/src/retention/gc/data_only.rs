// SPDX-License-Identifier: Apache-2.0
//! Sets of which only data logs are needed: their tables are deleted, and so are logs to which no
//! other set refers.
//!
//! A squash refers to logs of sets whose names may all be deleted. Its manifest lists them, so
//! exactly the union of these lists stays of such a set. Each collection deletes the rest: further
//! logs become garbage when a squash that refers to them is deleted.

use esker_base::{Kind, Result};
use esker_table::manifest::{LogNumbers, Manifest, SetId, SetState};
use esker_table::object_name::{ObjectFolder, ObjectName};

use super::{GarbageCollection, KnownSet};
use crate::retention::dependency::{self, SetDependency};
use crate::retention::marker::MarkerHolder;

impl GarbageCollection<'_> {
    /// Deletes everything of `set` except needed data logs. If this collection made it data-only,
    /// `before` is its previous manifest, and the sets that it no longer needs are returned.
    pub(super) fn keep_referenced_data(
        &mut self,
        set: SetId,
        before: Option<Box<Manifest>>,
    ) -> Result<Vec<SetDependency>> {
        let store = self.store();
        let referenced = self.logs_that_others_need(set)?;
        let manifests = ObjectFolder::Manifests(set).to_string();
        let mut objects = self.left_objects(set)?;
        objects.retain(|object| !object.name.starts_with(&manifests));
        for object in &objects {
            let is_needed = match object.name.parse() {
                Ok(ObjectName::Data(_, number) | ObjectName::Indexed(_, number, _)) => {
                    referenced.as_ref().is_none_or(|referenced| referenced.contains(number))
                }
                _ => false,
            };
            if !is_needed {
                self.delete(&object.name, object.bytes)?;
            }
        }
        let Some(before) = before else { return Ok(Vec::new()) };
        self.report.data_only_sets.push(set);
        let needed = dependency::of(set, &before);
        let manifest = if self.options.dry_run {
            let manifest = Manifest::new(Vec::new(), self.now_ns);
            Manifest { state: SetState::DataOnly, ..manifest }
        } else {
            self.release_markers_of(set, &needed)?;
            Manifest::load(store, set)?
        };
        self.sets.insert(set, KnownSet::Manifest(Box::new(manifest)));
        Ok(needed)
    }

    /// Returns the numbers of the logs of `set` to which other sets refer; `None` if that is
    /// unknown.
    fn logs_that_others_need(&self, set: SetId) -> Result<Option<LogNumbers>> {
        let mut referenced = LogNumbers::default();
        for holder in self.holders(set)? {
            let MarkerHolder::Data(other) = holder else { continue };
            match self.listed_logs(set, other)? {
                Some(numbers) => referenced.extend(&numbers),
                None => return Ok(None),
            }
        }
        Ok(Some(referenced))
    }

    /// Returns the numbers of the logs of `set` that `other`, which holds it for its data, lists;
    /// `None` if `other` cannot be read or is not complete, so that its needs are unknown.
    pub(super) fn listed_logs(&self, set: SetId, other: SetId) -> Result<Option<LogNumbers>> {
        match Manifest::load(self.store(), other) {
            Ok(manifest) => {
                let is_open = matches!(manifest.state, SetState::Open | SetState::CondemnedOpen);
                let numbers = dependency::referenced_logs(&manifest, set);
                Ok((!is_open).then(|| numbers.cloned().unwrap_or_default()))
            }
            Err(error) => match error.kind() {
                Kind::NotFound | Kind::Corrupt | Kind::TooLarge => Ok(None),
                _ => Err(error),
            },
        }
    }
}
