// SPDX-License-Identifier: Apache-2.0
//! `esker run --at`: runs a program that sees a namespace at a directory, without a mount.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use esker_base::{Error, Kind, Result};
use esker_comm::launch::JobOutcome;
use esker_fs::names::{self, spare_name};
use esker_fs::repository::Repository;
use esker_fs::retention::read_lease::{ReadLease, ReaderMarkers};
use esker_fs::session::Session;
use esker_fs::session::view::NamespaceView;
use esker_trap::TrapOptions;

use crate::change::{MessageArgument, NewNameSource, SessionSettings, announce, check_free};
use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::output::notice;
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
    /// Accept changes, and publish them as NEWNAME if the program succeeds (exit code 0)
    #[arg(long, value_name = "NEWNAME", requires = "at")]
    write: Option<String>,
    #[command(flatten)]
    message: MessageArgument,
    /// Keep files in the directory PATH while programs have them open; it needs room for all of them
    #[arg(long, value_name = "PATH", requires = "at")]
    spool: Option<PathBuf>,
    #[command(flatten)]
    settings: SessionSettings,
}

/// The namespace that a program sees, and the session in which it is changed.
struct ShownSubject {
    view: NamespaceView,
    session: Option<(Arc<Session>, String)>,
    /// Keeps what is shown from being collected.
    _lease: Option<ReadLease>,
}

impl ShownNamespace {
    /// Runs `job` with the namespace shown, and publishes what it has changed if it succeeds.
    pub fn run(
        self,
        context: &CommandContext,
        job: impl FnOnce() -> Result<JobOutcome> + Send,
    ) -> Result<JobOutcome> {
        let Some(place) = self.at.clone() else { return job() };
        let repository = context.repository()?;
        let subject = self.subject(context, &repository)?;
        let options = TrapOptions {
            view: subject.view.clone(),
            place,
            spool: self.spool.unwrap_or_else(std::env::temp_dir),
            threads: THREADS,
            report: Box::new(|error| notice(error.to_string())),
        };
        let mut has_run = false;
        let outcome = esker_trap::run(options, || job().inspect(|_| has_run = true)).flatten();
        let Some((session, name)) = subject.session else { return outcome };
        match &outcome {
            Ok(JobOutcome::Success) => publish(context, &session, &name)?,
            _ if has_run => keep(context, &session, &name, &outcome),
            // The error says why; that a session could not be dropped matters less.
            _ => drop(repository.abandon_session(&session)),
        }
        outcome
    }

    fn subject(&self, context: &CommandContext, repository: &Repository) -> Result<ShownSubject> {
        let bases = context.sets_of(repository, &self.bases)?;
        let Some(name) = &self.write else {
            if bases.is_empty() {
                usage::exit(
                    "show what? Name a snapshot with --base, or begin a new tree with --write",
                );
            }
            if self.message.message.is_some() {
                usage::exit("without --write nothing is published: leave out --message");
            }
            let (namespace, markers) = repository.open_held(&bases, context.identity())?;
            let view = NamespaceView::Snapshot(namespace);
            return Ok(ShownSubject { view, session: None, _lease: lease(markers)? });
        };
        check_free(repository, name, NewNameSource::Option("--write"))?;
        let mut options = self.settings.options(context);
        options.properties.extend(self.message.property());
        let markers = repository.hold_for_reading(&bases)?;
        let session = Arc::new(repository.begin(&bases, options)?);
        let view = NamespaceView::Session(session.clone());
        Ok(ShownSubject { view, session: Some((session, name.clone())), _lease: lease(markers)? })
    }
}

/// Renews `markers` for the lifetime of the lease.
fn lease(markers: Option<ReaderMarkers>) -> Result<Option<ReadLease>> {
    let failed =
        |error: Error| notice(error.within("could not keep the shown snapshot").to_string());
    markers.map(|markers| ReadLease::keep(markers, failed)).transpose()
}

fn publish(context: &CommandContext, session: &Session, name: &str) -> Result<()> {
    let set = session.set();
    let published = session.publish(name).map_err(|error| {
        let name = match error.kind() {
            Kind::Exists => spare_name(name, set),
            _ => name.to_owned(),
        };
        let left =
            session.end().err().map_or("", |_| " without the changes that could not be written");
        error.within(format!(
            "session @{set} stays open{left}; publish it by `esker publish @{set} {name}`"
        ))
    });
    published.and_then(|_| announce(context, name, set))
}

/// Leaves the session of a program that failed, and says how to go on.
fn keep(context: &CommandContext, session: &Session, name: &str, outcome: &Result<JobOutcome>) {
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
    let is_free = context.repository().and_then(|repository| {
        names::is_taken(&**repository.store(), name).map(|is_taken| !is_taken)
    });
    let other = spare_name(name, set);
    let free = if is_free.unwrap_or(true) { name } else { &other };
    let short = &set.to_string()[..DIGITS_SHOWN];
    notice(format!(
        "{cause}, so {name} was not published\n  \
         look at the changes: esker ls @{short}:/\n  \
         publish them:        esker publish @{short} {free}\n  \
         drop them:           esker session drop @{short}"
    ));
}
