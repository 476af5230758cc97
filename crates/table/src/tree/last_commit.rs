// SPDX-License-Identifier: Apache-2.0
//! Last commit: the commit of a flush that also applies an edit, so that both cost only one commit.
//!
//! Only the commit after which nothing that was put remains in memory applies the edit. The edit
//! may depend on a check, which runs while tables are written; everything put is flushed even if
//! the check fails.

use std::sync::Arc;

use esker_base::store::concurrent;
use esker_base::{Error, Kind, Result};

use super::{Compaction, FlushState, TIER_RUNS_MAX, Tree, TreeShared};
use crate::manifest::Manifest;

type ManifestEdit = Arc<dyn Fn(&mut Manifest) + Send + Sync>;
type CommitCheck = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// The reasons that later changes report after [`Tree::complete`].
#[derive(Clone, Debug, Default)]
pub struct CloseReasons {
    /// The edit was committed.
    pub complete: String,
    /// The edit may have been committed.
    pub in_doubt: String,
}

/// An edit that the last commit of a flush applies, and its progress.
pub(super) enum LastCommit {
    /// The check has no outcome: it has not run, or the work beside it failed.
    Unchecked(ManifestEdit, CommitCheck),
    /// The next commit that leaves nothing in memory applies the edit.
    Allowed(ManifestEdit),
    /// The check failed: the flush continues without the edit.
    Refused(Error),
    /// A commit has applied the edit.
    Committed,
}

impl LastCommit {
    fn run_check(self) -> Self {
        match self {
            Self::Unchecked(edit, check) => Self::checked(edit, check()),
            checked => checked,
        }
    }

    fn checked(edit: ManifestEdit, outcome: Result<()>) -> Self {
        match outcome {
            Ok(()) => Self::Allowed(edit),
            Err(refused) => Self::Refused(refused),
        }
    }

    /// Returns the edit that the next commit applies if it leaves nothing in memory.
    pub(super) fn edit(&self) -> Option<&ManifestEdit> {
        match self {
            Self::Allowed(edit) => Some(edit),
            Self::Unchecked(..) | Self::Refused(_) | Self::Committed => None,
        }
    }
}

impl Tree {
    /// Flushes, and commits the current manifest as changed by `edit`; it includes everything put
    /// before. Cost: as [`Tree::flush`], plus a commit if there was nothing to flush.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub fn commit(&self, edit: impl Fn(&mut Manifest) + Send + Sync + 'static) -> Result<Manifest> {
        self.commit_last(LastCommit::Allowed(Arc::new(edit)), true)
            .map(|committed| committed.expect("nothing was to be checked"))
    }

    /// Commits as [`Tree::commit`] does if `check`, which runs while tables are written, and again
    /// if they are written again, succeeds. If it fails, everything is flushed without the edit,
    /// and the inner result is its error. Once the edit is committed, or may be, the tree is closed:
    /// no later change would be in a table, or in a log that is read again. The caller ensures that
    /// no change is under way.
    ///
    /// Succeeds once the edit is committed, even if a later step fails: a failed deletion of a log,
    /// for instance, stops the tree, and its next operation reports that.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub fn complete(
        &self,
        edit: impl Fn(&mut Manifest) + Send + Sync + 'static,
        check: impl Fn() -> Result<()> + Send + Sync + 'static,
        reasons: CloseReasons,
    ) -> Result<Result<Manifest>> {
        let last = LastCommit::Unchecked(Arc::new(edit), Arc::new(check));
        let is_near = self.inner.store().requests_at_once() <= 1;
        let committed = self.commit_last(if is_near { last.run_check() } else { last }, false);
        match &committed {
            Ok(Err(_)) => {}
            Ok(Ok(_)) => self.close(reasons.complete),
            // The commit did not happen, and may be retried once there is room.
            Err(error) if error.kind() == Kind::NoSpace => {}
            Err(_) => self.close(reasons.in_doubt),
        }
        committed
    }

    /// Deletes the logs of a closed tree whose set no writer will resume. Logs that stay are
    /// collected.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn delete_logs(&self) -> Result<()> {
        self.inner.log.lock().delete_all()
    }

    fn commit_last(&self, last: LastCommit, goes_on: bool) -> Result<Result<Manifest>> {
        let inner = &*self.inner;
        // Beginning the next log costs a far store a round trip; a near one may have no room for it
        // later.
        let begins_log = goes_on || inner.store().requests_at_once() <= 1;
        inner.pending.lock().callers += 1;
        let committed = inner.flush_and_finish(last, begins_log);
        inner.pending.lock().callers -= 1;
        inner.chunks.release();
        if !begins_log && !matches!(committed, Ok(Ok(_))) {
            inner.begin_log();
        }
        committed
    }
}

impl TreeShared {
    /// Begins the log that a freeze did not begin because no change was to follow it.
    fn begin_log(&self) {
        let mut log = self.log.lock();
        if self.logs()
            && self.failure.get().is_none()
            && let Err(error) = log.prepare().map(|()| log.switch())
        {
            self.fail(&error);
        }
    }

    fn flush_and_finish(&self, last: LastCommit, begins_log: bool) -> Result<Result<Manifest>> {
        // Locked before the memtable is frozen, or the flushing thread would take it.
        let state = &mut self.lock_flush();
        self.write_frozen(state)?;
        self.freeze(true, begins_log)?;
        let mut last = Some(last);
        if !self.may_merge_runs() {
            state.last = last.take();
        }
        let written = self
            .write_frozen(state)
            .and_then(|()| self.check_failure())
            .and_then(|()| self.with_rollback(state, |state| self.drain_compressed(state)));
        let last = state.last.take().or(last).expect("only taken while it is applied");
        match (written, &last) {
            // The caller's request is done. A closed tree does nothing any more, which the caller
            // must know.
            (Err(error), LastCommit::Committed) if error.kind() != Kind::Closed => {}
            (written, _) => written?,
        }
        self.finish_last(state, last)
    }

    /// Returns whether a merge of runs, which makes another commit, may follow a flush of the
    /// records in memory.
    fn may_merge_runs(&self) -> bool {
        let version = self.version.load();
        let runs = version.tables.runs.len().max(version.family_tables.runs().len());
        // All compressed runs become one run.
        let runs = runs + version.frozen.len() + 1;
        match self.options.compaction {
            Compaction::Deferred => false,
            Compaction::Tiered => runs >= TIER_RUNS_MAX,
            Compaction::Full => runs > 1,
        }
    }

    /// Commits the edit of `last` unless a flush has done so.
    fn finish_last(&self, state: &mut FlushState, last: LastCommit) -> Result<Result<Manifest>> {
        match last.run_check() {
            LastCommit::Refused(refused) => return Ok(Err(refused)),
            LastCommit::Committed => {}
            LastCommit::Allowed(edit) => self.commit(state, |manifest| edit(manifest))?,
            LastCommit::Unchecked(..) => unreachable!("the check was run"),
        }
        Ok(Ok(state.manifest.clone()))
    }

    /// Runs `write`, which writes tables. Concurrently makes the data that their records refer to
    /// durable, and runs the check of the last commit.
    pub(super) fn write_beside_checks<T>(
        &self,
        state: &mut FlushState,
        write: impl FnOnce(&mut FlushState) -> Result<T>,
    ) -> Result<T> {
        let asked = match &state.last {
            Some(LastCommit::Unchecked(edit, check)) => Some((edit.clone(), check.clone())),
            _ => None,
        };
        let store = &**self.store();
        let check = move || Ok(asked.map(|(edit, check)| LastCommit::checked(edit, check())));
        let others = move || concurrent::try_join(store, || (self.sync_dependencies)(), check);
        let (written, ((), checked)) = concurrent::try_join(store, || write(state), others)?;
        if let Some(checked) = checked {
            state.last = Some(checked);
        }
        Ok(written)
    }
}
