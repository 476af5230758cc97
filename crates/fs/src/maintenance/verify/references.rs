// SPDX-License-Identifier: Apache-2.0
//! References: checks names, markers and manifests, and that each finds its target.

use std::collections::BTreeSet;

use esker_base::store::Store;
use esker_base::{Kind, Result};
use esker_extent::ExtentFamily;
use esker_table::manifest::{Manifest, NUMBER_MAX, SetId, SetState};
use esker_table::object_name::{ObjectFolder, ObjectName};
use esker_table::{LogId, decode_log};

use super::{Finding, Severity, Verification, VerifyTargets, name_object};
use crate::inode::INODE;
use crate::maintenance::graph::is_of_manifest;
use crate::names;
use crate::names::name_table::{self, ListedPart};
use crate::retention::condemn::{self, DeletionPhase};
use crate::retention::dependency::{self, SetDependency};
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::session_marker;

/// Larger logs are not read.
const LOG_BYTES_MAX: u64 = 1 << 32;

/// Returns the number of the newest manifest of `set`, if it has any.
pub(super) fn newest_number(store: &dyn Store, set: SetId) -> Result<Option<u64>> {
    match Manifest::newest_number(store, set) {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        newest => newest.map(Some),
    }
}

impl Verification<'_> {
    /// Checks the targets' names, and the manifests of their sets and of everything they need.
    pub(super) fn check_references(&mut self) -> Result<()> {
        let store = self.source.store.clone();
        let mut waiting: Vec<SetId> = Vec::new();
        match &self.options.targets {
            VerifyTargets::All => {
                for part in name_table::survey(&*store, true)? {
                    waiting.extend(self.check_name_part(part)?);
                }
                waiting.extend(self.repository.sets()?);
            }
            VerifyTargets::Names(names) => {
                for name in names.clone() {
                    let named = names::resolve(&*store, &name)?;
                    waiting.extend(self.check_name(&name, named.set)?);
                }
            }
            VerifyTargets::Sets(sets) => {
                waiting.extend(sets);
                self.roots.extend(sets);
            }
        }
        let mut seen = BTreeSet::new();
        while let Some(set) = waiting.pop() {
            if seen.insert(set)
                && let Some(manifest) = self.check_set(set)?
            {
                waiting.extend(dependency::of(set, &manifest).iter().map(|needed| needed.set));
                self.manifests.insert(set, manifest);
            }
        }
        self.check_needs()
    }

    /// Checks a version of a part of the name table; returns the sets of its names.
    fn check_name_part(&mut self, part: ListedPart) -> Result<Vec<SetId>> {
        match part.entries {
            Ok(entries) if part.is_newest => entries
                .iter()
                .filter_map(|(name, entry)| self.check_name(name, entry.set).transpose())
                .collect(),
            Ok(_) => Ok(Vec::new()),
            Err(error) => {
                let mut finding = Finding::of_error(&part.object, error)?;
                if !part.is_newest {
                    // It is obsolete, but it is not as it was written.
                    finding.severity = Severity::Warning;
                }
                self.find(finding);
                Ok(Vec::new())
            }
        }
    }

    pub(super) fn check_name(&mut self, name: &str, set: SetId) -> Result<Option<SetId>> {
        let store = self.source.store.clone();
        let object = name_object(name);
        self.report.names += 1;
        self.names.entry(set).or_insert_with(|| name.to_owned());
        if !marker::is_held(&*store, set, &MarkerHolder::Name(name.to_owned()))? {
            let got = "none: the next collection puts it back".to_owned();
            let expected = format!("a marker on set {set}");
            self.find(Finding::new(Severity::Error, &*object, expected, got));
        }
        let state = match Manifest::load(&*store, set) {
            // A reopening that was refused, or stopped, left it so; readers and collections restore
            // it.
            Ok(manifest) if manifest.state == SetState::CondemnedSealed => {
                SetState::Sealed.to_string()
            }
            Ok(manifest) => manifest.state.to_string(),
            Err(error) if error.kind() == Kind::NotFound => "none".into(),
            // Found again, and reported, when the set is checked.
            Err(error) if error.kind() == Kind::Corrupt => return Ok(Some(set)),
            Err(error) => return Err(error),
        };
        self.roots.insert(set);
        if state != SetState::Sealed.to_string() {
            let expected = format!("set {set} to be published");
            self.find(Finding::new(Severity::Error, object, expected, state));
        }
        Ok(Some(set))
    }

    /// Checks the manifests and logs of one set; returns its newest manifest, if that is valid and
    /// the set is not being deleted.
    fn check_set(&mut self, set: SetId) -> Result<Option<Manifest>> {
        let store = self.source.store.clone();
        let folder = ObjectFolder::Manifests(set).to_string();
        let loaded = Manifest::load(&*store, set);
        let is_gone = match &loaded {
            Ok(manifest) => {
                matches!(condemn::phase(manifest), DeletionPhase::Doomed | DeletionPhase::DataOnly)
            }
            Err(error) => error.kind() == Kind::NotFound,
        };
        let manifest = match loaded {
            Ok(manifest) => {
                self.numbers.insert(set, Some(manifest.number));
                if self.is_given_up(set, &manifest)? {
                    let got = "none: it was given up, and the next collection deletes it";
                    let object = format!("set {set}");
                    self.find(Finding::new(Severity::Information, object, "a marker", got));
                    return Ok(None);
                }
                self.report.sets += usize::from(!is_gone);
                manifest
            }
            Err(error) => {
                self.report.sets += usize::from(!is_gone);
                self.numbers.insert(set, newest_number(&*store, set)?);
                let mut finding = Finding::of_error(&folder, error)?;
                if finding.got == "none" && marker::holders(&*store, set)?.is_empty() {
                    finding.severity = Severity::Information;
                }
                self.find(finding);
                return Ok(None);
            }
        };
        for name in store.list_names(&folder)? {
            let name = format!("{folder}{name}");
            let Ok(ObjectName::Manifest(_, number)) = name.parse() else { continue };
            if number == manifest.number {
                continue;
            }
            match Manifest::load_number(&*store, set, number) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    // It is obsolete, but it is not as it was written.
                    let finding = Finding::of_error(&name, error)?;
                    self.find(Finding { severity: Severity::Warning, ..finding });
                }
                _ => {}
            }
        }
        if condemn::phase(&manifest) == DeletionPhase::Doomed {
            let got = "one being deleted";
            self.find(Finding::new(Severity::Information, format!("set {set}"), "a set", got));
            return Ok(None);
        }
        self.check_logs(set, &manifest)?;
        self.check_numbers(set, &manifest)?;
        Ok(Some(manifest))
    }

    /// True for a set without a name that nothing keeps, open or given up: no process can read,
    /// resume or publish it, so objects that it lacks are no loss. Targets named by the user are
    /// checked nevertheless.
    fn is_given_up(&self, set: SetId, manifest: &Manifest) -> Result<bool> {
        if self.options.targets != VerifyTargets::All
            || !(manifest.state == SetState::Open || manifest.is_given_up)
            || self.names.contains_key(&set)
        {
            return Ok(false);
        }
        for holder in marker::holders(&*self.source.store, set)? {
            let is_left = match &holder {
                MarkerHolder::Name(name) => !names::stands_for(&*self.source.store, name, set)?,
                holder => holder.is_session(),
            };
            // A process that gave it up may have died before it removed the marker.
            if !(manifest.is_given_up && is_left) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks the write-ahead logs that an open set needs for recovery.
    fn check_logs(&mut self, set: SetId, manifest: &Manifest) -> Result<()> {
        let store = self.source.store.clone();
        if manifest.state != SetState::Open {
            return Ok(());
        }
        if !session_marker::is_held(&*store, set)? {
            let got = "none: the next collection deletes it";
            let object = format!("set {set}");
            self.find(Finding::new(Severity::Information, object, "a session's marker", got));
        }
        for object in store.list(&ObjectFolder::Logs(set).to_string())? {
            let Ok(ObjectName::Log(_, number)) = object.name.parse() else { continue };
            if number < manifest.log_floor {
                continue;
            }
            let read = store.get(&object.name, LOG_BYTES_MAX).and_then(|bytes| {
                let id = LogId { set, number };
                decode_log(&INODE, &ExtentFamily, id, &bytes, &mut |_| {})
                    .map_err(|damage| damage.of(&object.name, 0))
            });
            match read {
                Ok(_) => {}
                // Its writer deleted it in the meantime.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => {
                    let finding = Finding::of_error(&object.name, error)?;
                    self.find(finding);
                }
            }
        }
        Ok(())
    }

    fn check_numbers(&mut self, set: SetId, manifest: &Manifest) -> Result<()> {
        let object = format!("manifest of {set}");
        let own = manifest.tables.iter().filter(|table| table.set == set);
        let highest = own.map(|table| table.seq_max).max().unwrap_or(0);
        let last_seq = match highest > manifest.last_seq {
            true => manifest.last_seq.max(self.last_seq_of_data(manifest)?),
            false => manifest.last_seq,
        };
        for table in manifest.tables.iter().filter(|table| table.set == set) {
            if table.seq_max > last_seq {
                let expected = format!("sequence numbers up to {last_seq}");
                let got = format!("{} in {}", table.seq_max, table.name());
                self.find(Finding::new(Severity::Error, &*object, expected, got));
            }
            if table.number >> 32 > manifest.epoch {
                let expected = format!("tables of epochs up to {}", manifest.epoch);
                self.find(Finding::new(Severity::Error, &*object, expected, table.name()));
            }
        }
        Ok(())
    }

    /// Returns the highest sequence number of the sets whose tables the set may have merged, in
    /// which records keep their numbers; the highest possible one if a set cannot be read, which is
    /// reported as such. Cost: two requests for each.
    fn last_seq_of_data(&self, manifest: &Manifest) -> Result<u64> {
        let mut last_seq = 0;
        for other in &manifest.data_sets {
            match Manifest::load(&*self.source.store, *other) {
                Ok(other) => last_seq = last_seq.max(other.last_seq),
                Err(error) if is_of_manifest(error.kind()) => return Ok(NUMBER_MAX),
                Err(error) => return Err(error),
            }
        }
        Ok(last_seq)
    }

    /// Checks that everything each set needs exists, is complete and is held by the set.
    fn check_needs(&mut self) -> Result<()> {
        let store = self.source.store.clone();
        let mut findings = Vec::new();
        let mut needed_by_others = BTreeSet::new();
        for (set, manifest) in &self.manifests {
            let object = format!("set {set}");
            let is_abandoned = marker::holders(&*store, *set)?.is_empty();
            // A set without holders need not hold anything.
            let severity = if is_abandoned { Severity::Information } else { Severity::Error };
            if is_abandoned && manifest.state == SetState::Sealed {
                let got = "none: the next collection deletes it";
                findings.push(Finding::new(severity, &*object, "a marker", got));
            }
            for needed in dependency::of(*set, manifest) {
                let SetDependency { set: needed, holder } = needed;
                let only_data = !holder.keeps_tables();
                if !only_data {
                    needed_by_others.insert(needed);
                }
                if !marker::is_held(&*store, needed, &holder)? {
                    let expected = format!("its marker on set {needed}");
                    findings.push(Finding::new(severity, &*object, expected, "none"));
                }
                let is_base = manifest.bases.contains(&needed);
                let got = match self.manifests.get(&needed).map(|other| other.state) {
                    Some(SetState::Sealed | SetState::CondemnedSealed) => continue,
                    Some(SetState::Open | SetState::CondemnedOpen) if !is_base => continue,
                    Some(_) if only_data => continue,
                    Some(state) => format!("{state:?}"),
                    None => "none that can be read".to_owned(),
                };
                let expected = match only_data {
                    true => format!("set {needed}, to whose data it refers"),
                    false => format!("set {needed}, which it builds on, to be published"),
                };
                findings.push(Finding::new(severity, &*object, expected, got));
            }
        }
        self.report.findings.extend(findings);
        if self.options.targets == VerifyTargets::All {
            let alone = self.manifests.iter().filter(|(set, manifest)| {
                manifest.state == SetState::Sealed && !needed_by_others.contains(set)
            });
            self.roots.extend(alone.map(|(set, _)| *set));
        }
        Ok(())
    }
}
