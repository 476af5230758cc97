//! Last commit: the commit of a flush that also says something else, so that both cost one.
//!
//! The commit after which nothing that was put is in memory only applies the edit. Something may have
//! to be true before that, which others decide: it is looked up while tables are written, and what was
//! put is flushed in any case.

use esker_base::store::concurrent;
use esker_base::{Error, Result};

use super::{Compaction, FlushState, Inner, TIER_RUNS_MAX, Tree};
use crate::manifest::Manifest;

type Edit = Box<dyn Fn(&mut Manifest) + Send>;
type Check = Box<dyn FnOnce() -> Result<()> + Send>;

/// What the last commit of a flush says besides.
pub(super) struct LastCommit {
    edit: Edit,
    /// Not asked yet.
    check: Option<Check>,
    /// What the check said against the edit.
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

    /// Edits `manifest`, which leaves nothing in memory, unless that was refused.
    pub(super) fn apply(&self, manifest: &mut Manifest) {
        if self.refused.is_none() && self.check.is_none() {
            (self.edit)(manifest);
        }
    }

    /// What [`LastCommit::apply`] edited is committed.
    pub(super) fn committed(self) -> Self {
        Self { is_done: self.refused.is_none() && self.check.is_none(), ..self }
    }
}

impl Tree {
    /// Flushes, and commits the manifest that `edit` makes of the current one; what was put before is
    /// in it. Cost: as [`Tree::flush`]; a commit if there was nothing to flush.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub fn commit(&self, edit: impl Fn(&mut Manifest) + Send + 'static) -> Result<Manifest> {
        self.commit_last(LastCommit::new(edit), true)
            .map(|committed| committed.expect("nothing was to be checked"))
    }

    /// As [`Tree::commit`] if `check` succeeds, which runs while tables are written: if not, everything
    /// is flushed and nothing else, and the outcome within is that of `check`. No change may come
    /// after an edit that was committed.
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

    /// Deletes the logs of a tree that was closed and whose set nobody goes on with. What stays is
    /// collected.
    ///
    /// # Errors
    /// What the store reports.
    pub fn delete_logs(&self) -> Result<()> {
        self.inner.log.lock().delete_all()
    }

    fn commit_last(&self, last: LastCommit, goes_on: bool) -> Result<Result<Manifest>> {
        let inner = &*self.inner;
        // To begin the next log costs a far store a round trip; a near one may have no room for it later.
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
    /// Begins the log that a freeze did not, because no change was to come after it.
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
        // From before the memtable is frozen, or the thread that flushes takes it.
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

    /// Whether a flush of what is in memory may be followed by a merge of runs, which commits after it.
    fn may_merge_runs(&self) -> bool {
        let version = self.version.load();
        let runs = version.tables.runs.len().max(version.segments.sources().len());
        // Compressed runs become one.
        let runs = runs + version.frozen.len() + 1;
        match self.options.compaction {
            Compaction::Deferred => false,
            Compaction::Tiered => runs >= TIER_RUNS_MAX,
            Compaction::Full => runs > 1,
        }
    }

    /// Commits what `last` says unless a flush has done so.
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

    /// Runs `write`, which writes tables; beside it makes durable what their records refer to, and
    /// looks up what the last commit depends on.
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
