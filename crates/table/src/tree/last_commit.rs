//! Last commit: the commit of a flush that also applies an edit, so that both cost only one commit.
//!
//! Only the commit after which nothing that was put remains in memory applies the edit. The edit
//! may depend on a check, which runs while tables are written; everything put is flushed whatever
//! its outcome.

use esker_base::store::concurrent;
use esker_base::{Error, Result};

use super::{Compaction, FlushState, Inner, TIER_RUNS_MAX, Tree};
use crate::manifest::Manifest;

type Edit = Box<dyn Fn(&mut Manifest) + Send>;
type Check = Box<dyn FnOnce() -> Result<()> + Send>;

/// An edit that the last commit of a flush applies.
pub(super) struct LastCommit {
    edit: Edit,
    /// The check, until it has run.
    check: Option<Check>,
    /// The check's error, which forbids the edit.
    refused: Option<Error>,
    is_done: bool,
}

impl LastCommit {
    fn new(edit: impl Fn(&mut Manifest) + Send + 'static) -> Self {
        Self { edit: Box::new(edit), check: None, refused: None, is_done: false }
    }

    fn run_check(&mut self) {
        if let Some(check) = self.check.take() {
            self.refused = check().err();
        }
    }

    /// Applies the edit to `manifest`, which leaves nothing in memory, unless the check failed or
    /// has not run.
    pub(super) fn apply(&self, manifest: &mut Manifest) {
        if self.refused.is_none() && self.check.is_none() {
            (self.edit)(manifest);
        }
    }

    /// Marks the edit of [`LastCommit::apply`] as committed.
    pub(super) fn committed(self) -> Self {
        Self { is_done: self.refused.is_none() && self.check.is_none(), ..self }
    }
}

impl Tree {
    /// Flushes, and commits the current manifest as changed by `edit`; it includes everything put
    /// before. Cost: as [`Tree::flush`], plus a commit if there was nothing to flush.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub fn commit(&self, edit: impl Fn(&mut Manifest) + Send + 'static) -> Result<Manifest> {
        self.commit_last(LastCommit::new(edit), true)
            .map(|committed| committed.expect("nothing was to be checked"))
    }

    /// Commits as [`Tree::commit`] does if `check`, which runs while tables are written, succeeds.
    /// If it fails, everything is flushed without the edit, and the inner result is its error. No
    /// change may follow a committed edit.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub fn complete(
        &self,
        edit: impl Fn(&mut Manifest) + Send + 'static,
        check: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Result<Manifest>> {
        let mut last = LastCommit { check: Some(Box::new(check)), ..LastCommit::new(edit) };
        if self.inner.store().requests_at_once() <= 1 {
            last.run_check();
        }
        self.commit_last(last, false)
    }

    /// Deletes the logs of a closed tree whose set no writer will resume. Logs that stay are
    /// collected.
    ///
    /// # Errors
    /// What the store reports.
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

impl Inner {
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
        let state = &mut self.flush.lock();
        self.write_frozen(state)?;
        self.freeze(true, begins_log)?;
        let mut last = Some(last);
        if !self.may_merge_runs() {
            state.last = last.take();
        }
        let written = self
            .write_frozen(state)
            .and_then(|()| self.check_failure())
            .and_then(|()| self.attempt(state, |state| self.drain_compressed(state)));
        let last = state.last.take().or(last).expect("only taken while it is applied");
        written?;
        self.finish_last(state, last)
    }

    /// Returns whether a merge of runs, which makes another commit, may follow a flush of the
    /// records in memory.
    fn may_merge_runs(&self) -> bool {
        let version = self.version.load();
        let runs = version.tables.runs.len().max(version.segments.sources().len());
        // All compressed runs become one run.
        let runs = runs + version.frozen.len() + 1;
        match self.options.compaction {
            Compaction::Deferred => false,
            Compaction::Tiered => runs >= TIER_RUNS_MAX,
            Compaction::Full => runs > 1,
        }
    }

    /// Commits the edit of `last` unless a flush has done so.
    fn finish_last(
        &self,
        state: &mut FlushState,
        mut last: LastCommit,
    ) -> Result<Result<Manifest>> {
        last.run_check();
        if let Some(refused) = last.refused {
            return Ok(Err(refused));
        }
        if !last.is_done {
            self.commit(state, |manifest| (last.edit)(manifest))?;
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
        let check = state.last.as_mut().and_then(|last| last.check.take());
        let store = &**self.store();
        let check = move || Ok(check.map(|check| check()));
        let others = move || concurrent::try_join(store, || (self.barrier)(), check);
        let (written, ((), checked)) = concurrent::try_join(store, || write(state), others)?;
        if let (Some(last), Some(checked)) = (&mut state.last, checked) {
            last.refused = checked.err();
        }
        Ok(written)
    }
}
