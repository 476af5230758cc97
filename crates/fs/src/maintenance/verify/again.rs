// SPDX-License-Identifier: Apache-2.0
//! Repeated verification: a concurrent collection, compaction or deletion removes objects that the
//! verification is about to read. So findings about a set that has changed since it was examined
//! are discarded, and the current state of the set is verified instead.

use std::collections::{BTreeMap, BTreeSet};

use esker_base::{Kind, Result};
use esker_table::manifest::{Manifest, SetId};

use super::references::newest_number;
use super::{
    Finding, NAME_OBJECT, Severity, Verification, VerifyOptions, VerifyTargets, name_object,
};
use crate::names;
use crate::retention::condemn::{self, DeletionPhase};
use crate::retention::dependency;

/// Maximum number of passes over sets that keep changing.
const PASSES_MAX: usize = 4;

/// Subjects of findings that may be wrong.
#[derive(Default)]
struct DoubtfulFindings {
    names: BTreeSet<String>,
    sets: BTreeSet<SetId>,
}

impl Verification<'_> {
    /// Verifies everything again that has changed since it was found to be wrong. Cost: nothing if
    /// nothing is wrong; otherwise a listing for each set that a finding may be about.
    pub(super) fn check_again(&mut self) -> Result<()> {
        for _ in 1..PASSES_MAX {
            let doubt = self.doubtful_findings()?;
            if doubt.sets.is_empty() && doubt.names.is_empty() {
                break;
            }
            self.report.findings.retain(|finding| {
                let is_of_name = name_of(finding).is_some_and(|name| doubt.names.contains(name));
                !is_of_name && sets_of(finding).iter().all(|set| !doubt.sets.contains(set))
            });
            self.verify_again(&doubt)?;
        }
        Ok(())
    }

    /// Returns the names and sets of findings about something that has changed since, with
    /// everything they need and everything that needs them.
    fn doubtful_findings(&self) -> Result<DoubtfulFindings> {
        let store = &*self.source.store;
        let mut doubt = DoubtfulFindings::default();
        let mut is_known: BTreeMap<SetId, bool> = BTreeMap::new();
        let mut asked = BTreeSet::new();
        for finding in &self.report.findings {
            let about = (name_of(finding), sets_of(finding));
            if finding.severity == Severity::Information || !asked.insert(about) {
                continue;
            }
            let related = self.related(&sets_of(finding));
            let mut has_changed = false;
            for set in &related {
                let changed = match is_known.get(set) {
                    Some(changed) => *changed,
                    None => match self.numbers.get(set) {
                        Some(number) => newest_number(store, *set)? != *number,
                        None => false,
                    },
                };
                is_known.insert(*set, changed);
                has_changed |= changed;
            }
            if let Some(name) = name_of(finding) {
                has_changed |= match names::resolve(store, name) {
                    Ok(named) => !sets_of(finding).contains(&named.set),
                    Err(error) => error.kind() == Kind::NotFound,
                };
                if has_changed {
                    doubt.names.insert(name.to_owned());
                }
            }
            if has_changed {
                doubt.sets.extend(related);
            }
        }
        Ok(doubt)
    }

    /// Returns `sets`, the sets that need them, and everything that any of these needs.
    fn related(&self, sets: &BTreeSet<SetId>) -> BTreeSet<SetId> {
        let needs = |set: &SetId| -> Vec<SetId> {
            let own = self.manifests.get(set).map(|own| dependency::of(*set, own));
            own.into_iter().flatten().map(|needed| needed.set).collect()
        };
        let above =
            self.manifests.keys().filter(|set| needs(set).iter().any(|set| sets.contains(set)));
        let mut waiting: Vec<SetId> = above.chain(sets).copied().collect();
        let mut related = BTreeSet::new();
        while let Some(set) = waiting.pop() {
            if related.insert(set) {
                waiting.extend(needs(&set));
            }
        }
        related
    }

    fn verify_again(&mut self, doubt: &DoubtfulFindings) -> Result<()> {
        let store = self.source.store.clone();
        let mut sets = Vec::new();
        for set in &doubt.sets {
            self.manifests.remove(set);
            self.numbers.remove(set);
            match Manifest::load(&*store, *set) {
                // A set that is gone or going is no error; sets that need it are verified again.
                Err(error) if error.kind() == Kind::NotFound => {}
                Ok(manifest) if condemn::phase(&manifest) != DeletionPhase::Live => {}
                _ => sets.push(*set),
            }
        }
        let targets = VerifyTargets::Sets(sets);
        let options = VerifyOptions { targets, progress: None, ..self.options.clone() };
        let mut again = Verification::new(self.repository, &options);
        again.names.clone_from(&self.names);
        for name in &doubt.names {
            match names::resolve(&*store, name) {
                Ok(named) => drop(again.check_name(name, named.set)?),
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => {
                    let finding = Finding::of_error(&name_object(name), error)?;
                    again.find(finding);
                }
            }
        }
        again.check_references()?;
        // Parts, and sets below others, have no tree of their own.
        again.roots.retain(|root| self.roots.contains(root));
        again.check_tables()?;
        self.report.findings.append(&mut again.report.findings);
        self.manifests.append(&mut again.manifests);
        self.numbers.append(&mut again.numbers);
        Ok(())
    }
}

fn name_of(finding: &Finding) -> Option<&str> {
    finding.object.strip_prefix(NAME_OBJECT)
}

/// Returns the sets that a finding names.
fn sets_of(finding: &Finding) -> BTreeSet<SetId> {
    let words = [&finding.object, &finding.expected].into_iter();
    let words = words.flat_map(|text| text.split(|letter: char| !letter.is_ascii_alphanumeric()));
    words.filter_map(|word| word.parse().ok()).collect()
}
