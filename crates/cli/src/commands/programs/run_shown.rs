// SPDX-License-Identifier: Apache-2.0
//! `esker run --at`: runs a program that sees a namespace at a directory, without a mount.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use esker_base::{Error, Result};
use esker_comm::launch::JobOutcome;
use esker_fs::names;
use esker_fs::repository::Repository;
use esker_fs::retention::read_lease::{ReadLease, ReaderMarkers};
use esker_fs::session::Session;
use esker_fs::session::view::NamespaceView;
use esker_preload::preload_variable;
use esker_trap::TrapOptions;

use crate::change::{MessageArgument, SessionSettings};
use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::mount_overlap;
use crate::output::notice;
use crate::session_outcome::{OutcomeArguments, SessionOutcome};
use crate::usage;

/// Digits of a set that messages show.
const DIGITS_SHOWN: usize = 12;

/// Threads that answer system calls: requests to a far store wait in some of them.
const THREADS: usize = 8;

/// A namespace that a program sees at a directory.
#[derive(Args)]
#[command(next_help_heading = "Files")]
pub struct ShownNamespace {
    /// Show files of the store at DIR, a new or an empty directory, to the program and to all that it starts,
    /// without a mount
    #[arg(long, value_name = "DIR")]
    at: Option<PathBuf>,
    /// Show this snapshot; of several, those named first win. Without one, the tree is empty
    #[arg(long = "base", value_name = "NAME", value_parser = StackArgument::parser(), requires = "at")]
    bases: Vec<StackArgument>,
    #[command(flatten)]
    outcome: OutcomeArguments,
    #[command(flatten)]
    message: MessageArgument,
    /// Keep files in the directory PATH while programs have them open; it needs room for all of them
    #[arg(long, value_name = "PATH", requires = "at")]
    spool: Option<PathBuf>,
    #[command(flatten)]
    settings: SessionSettings,
    /// Load a small library into dynamically linked programs, so that opens and stats of files outside of DIR
    /// take 2 µs instead of 17; the guide has what differs
    #[arg(long, requires = "at")]
    preload: bool,
}

/// The namespace that a program sees, and the session in which it is changed.
struct ShownSubject {
    view: NamespaceView,
    session: Option<(Arc<Session>, SessionOutcome)>,
    /// Keeps what is shown from being collected.
    _lease: Option<ReadLease>,
}

impl ShownNamespace {
    /// Runs `job` with the namespace shown, and publishes what it has changed if it succeeds. `job`
    /// gets the variables that the programs' environment needs.
    pub fn run(
        self,
        context: &CommandContext,
        job: impl FnOnce(Vec<(OsString, OsString)>) -> Result<JobOutcome> + Send,
    ) -> Result<JobOutcome> {
        let changes = self.outcome.outcome()?;
        let Some(place) = self.at.clone() else {
            if changes.is_some() {
                usage::exit("where does the program see what it changes? Give --at DIR");
            }
            return job(Vec::new());
        };
        mount_overlap::check_mountpoint(context.store_url(), &place)?;
        let repository = context.repository()?;
        let subject = self.subject(context, &repository, changes)?;
        let options = TrapOptions {
            view: subject.view.clone(),
            place,
            spool: self.spool.unwrap_or_else(std::env::temp_dir),
            threads: THREADS,
            preload: self.preload,
            report: Box::new(|error| notice(error.to_string())),
        };
        let mut has_run = false;
        let outcome = esker_trap::run(options, |library| {
            job(library.map(preload_variable).into_iter().collect()).inspect(|_| has_run = true)
        });
        let outcome = outcome.flatten();
        let Some((session, end)) = subject.session else { return outcome };
        match &outcome {
            Ok(JobOutcome::Success) => SessionOutcome::announce(context, &end.reach(&session)?)?,
            _ if has_run => keep(context, &session, &end, &outcome),
            // The error says why; that a session could not be dropped matters less.
            _ => drop(repository.abandon_session(&session)),
        }
        outcome
    }

    fn subject(
        &self,
        context: &CommandContext,
        repository: &Repository,
        changes: Option<SessionOutcome>,
    ) -> Result<ShownSubject> {
        let bases = context.sets_of(repository, &self.bases)?;
        let Some(end) = changes else {
            if bases.is_empty() {
                usage::exit(
                    "show what? Name a snapshot with --base, or begin a new tree with --write",
                );
            }
            if self.message.message.is_some() {
                usage::exit("without --write or --job nothing is kept: leave out --message");
            }
            let (namespace, markers) = repository.open_held(&bases, context.identity())?;
            let view = NamespaceView::Snapshot(namespace);
            return Ok(ShownSubject { view, session: None, _lease: lease(markers)? });
        };
        end.check(repository)?;
        let mut options = self.settings.options(context);
        options.properties.extend(self.message.property());
        let markers = repository.hold_for_reading(&bases)?;
        let session = Arc::new(end.begin(repository, &bases, options)?);
        let view = NamespaceView::Session(session.clone());
        Ok(ShownSubject { view, session: Some((session, end)), _lease: lease(markers)? })
    }
}

/// Renews `markers` for the lifetime of the lease.
fn lease(markers: Option<ReaderMarkers>) -> Result<Option<ReadLease>> {
    let failed =
        |error: Error| notice(error.within("could not keep the shown snapshot").to_string());
    markers.map(|markers| ReadLease::keep(markers, failed)).transpose()
}

/// Leaves the session of a program that failed, and says how to go on.
fn keep(
    context: &CommandContext,
    session: &Session,
    end: &SessionOutcome,
    outcome: &Result<JobOutcome>,
) {
    let set = session.set();
    if let Err(error) = session.end() {
        notice(format!("changes of session @{set} could not be written: {error}"));
    }
    let cause = match outcome {
        Ok(JobOutcome::Exit(_, code)) => format!("the program failed (exit code {code})"),
        Ok(JobOutcome::Killed(_, signal) | JobOutcome::Interrupted(signal)) => {
            format!("the program was ended by signal {signal}")
        }
        _ => "what the program wrote could not all be written".to_owned(),
    };
    let is_taken = context.repository().and_then(|repository| match end {
        SessionOutcome::Snapshot(name) => names::is_taken(&**repository.store(), name),
        SessionOutcome::Part { .. } => Ok(false),
    });
    let short = &set.to_string()[..DIGITS_SHOWN];
    let command = end.finishing_command((set, short), is_taken.unwrap_or(false));
    let (is_not, finish) = match end {
        SessionOutcome::Snapshot(_) => ("published", "publish them: "),
        SessionOutcome::Part { .. } => ("completed", "complete them:"),
    };
    notice(format!(
        "{cause}, so {end} was not {is_not}\n  \
         look at the changes: esker ls @{short}:/\n  \
         {finish}       {command}\n  \
         drop them:           esker session drop @{short}"
    ));
}
