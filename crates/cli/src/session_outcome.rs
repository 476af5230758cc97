// SPDX-License-Identifier: Apache-2.0
//! Session outcome: the snapshot or the part of a job that a session becomes after other programs have
//! written in it, in a mount or without one.

use std::fmt;

use clap::{ArgGroup, Args};
use esker_base::{Error, Kind, Result};
use esker_comm::job::RankContext;
use esker_fs::job::JobId;
use esker_fs::names::spare_name;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_table::manifest::SetId;
use serde_json::{Value, json};

use crate::change::{NewNameSource, check_free};
use crate::context::CommandContext;
use crate::usage;

/// The name or the job for which programs write.
#[derive(Args)]
#[command(group = ArgGroup::new("changes").args(["write", "job"]))]
pub struct OutcomeArguments {
    /// Accept changes, and publish them as NEWNAME at the end; `run` does so if the program succeeds
    /// (exit code 0)
    #[arg(long, value_name = "NEWNAME")]
    write: Option<String>,
    /// Accept changes as one part of a job of several nodes or programs: the part is completed at the
    /// end, and `esker publish --job JOBID NAME` joins all. `esker session job` prints an id
    #[arg(long, value_name = "JOBID")]
    job: Option<JobId>,
    /// Number of the part; unless given, the rank that `esker run`, srun or mpirun gave this process
    #[arg(long, value_name = "N", requires = "job", conflicts_with = "write")]
    rank: Option<u32>,
}

/// The end of a session in which programs write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionOutcome {
    /// It is published under this name.
    Snapshot(String),
    /// It is completed as a part of a job.
    Part {
        /// The job.
        job: JobId,
        /// The number of the part.
        rank: u32,
    },
}

impl fmt::Display for SessionOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(name) => f.write_str(name),
            Self::Part { job, rank } => write!(f, "part {rank} of job {job}"),
        }
    }
}

impl OutcomeArguments {
    /// The outcome, or `None` if no changes are accepted.
    ///
    /// # Errors
    /// `Invalid` if the part has no number.
    pub fn outcome(&self) -> Result<Option<SessionOutcome>> {
        if let Some(name) = &self.write {
            return Ok(Some(SessionOutcome::Snapshot(name.clone())));
        }
        let Some(job) = self.job else { return Ok(None) };
        if let Some(rank) = self.rank {
            return Ok(Some(SessionOutcome::Part { job, rank }));
        }
        let rank = RankContext::rank_from_env()?.map(|rank| rank.0);
        let rank = rank.unwrap_or_else(|| {
            usage::exit(
                "which part of the job? Give --rank N, a different number for each node or program",
            )
        });
        Ok(Some(SessionOutcome::Part { job, rank }))
    }
}

impl SessionOutcome {
    /// Fails if a snapshot could not get its name.
    pub fn check(&self, repository: &Repository) -> Result<()> {
        match self {
            Self::Snapshot(name) => check_free(repository, name, NewNameSource::Option("--write")),
            Self::Part { .. } => Ok(()),
        }
    }

    /// Begins the session.
    ///
    /// # Errors
    /// `Exists` if the job has this part; errors of [`Repository::begin`].
    pub fn begin(
        &self,
        repository: &Repository,
        bases: &[SetId],
        options: SessionOptions,
    ) -> Result<Session> {
        match self {
            Self::Snapshot(_) => repository.begin(bases, options),
            Self::Part { job, rank } => repository.begin_part(*job, *rank, bases, options),
        }
    }

    /// Publishes or completes the session; returns a report for [`SessionOutcome::announce`]. After a
    /// failure the session stays open, and the error says how to finish it.
    pub fn reach(&self, session: &Session) -> Result<Value> {
        let set = session.set();
        let ended = match self {
            Self::Snapshot(name) => session.publish(name),
            Self::Part { .. } => session.complete(),
        };
        ended.map_err(|error| {
            if error.kind() == Kind::Fenced {
                return error;
            }
            let is_taken = error.kind() == Kind::Exists;
            // Other processes can then resume it at once.
            let left = match session.end() {
                Ok(()) => "",
                Err(_) => " without the changes that could not be written",
            };
            let command = self.finishing_command((set, &set.to_string()), is_taken);
            error.within(format!("session @{set} stays open{left}; finish it by `{command}`"))
        })?;
        Ok(match self {
            Self::Snapshot(name) => json!({"published": name, "set": set.to_string()}),
            Self::Part { job, rank } => {
                json!({"job": job.to_string(), "rank": rank, "set": set.to_string()})
            }
        })
    }

    /// The command that does to the open session `set`, written as `digits`, what its end would have
    /// done; under another name if its own `is_taken`.
    pub fn finishing_command(&self, (set, digits): (SetId, &str), is_taken: bool) -> String {
        match self {
            Self::Snapshot(name) if is_taken => {
                format!("esker publish @{digits} {}", spare_name(name, set))
            }
            Self::Snapshot(name) => format!("esker publish @{digits} {name}"),
            Self::Part { .. } => format!("esker session complete @{digits}"),
        }
    }

    /// Prints the report of an outcome that was reached, if it has one.
    pub fn announce(context: &CommandContext, report: &Value) -> Result<()> {
        if context.out.is_json() {
            return context.out.json(report.clone());
        }
        let Some(set) = report["set"].as_str() else { return Ok(()) };
        if let Some(name) = report["published"].as_str() {
            return context.out.line(format!("published {name} @{set}"));
        }
        match (report["job"].as_str(), report["rank"].as_u64()) {
            (Some(job), Some(rank)) => context.out.line(format!(
                "part {rank} of job {job} is complete: @{set}\n\
                 next, once all parts are: esker publish --job {job} NAME"
            )),
            _ => Ok(()),
        }
    }
}

/// Returns the open session of the part `rank` of `job`, to resume it.
///
/// # Errors
/// `NotFound` if there is none; `Closed` if the part is complete.
pub fn open_part(repository: &Repository, job: JobId, rank: u32) -> Result<SetId> {
    let parts = repository.parts(job)?;
    match parts.iter().find(|part| part.rank == rank) {
        Some(part) if part.is_complete => {
            let what = format!("part {rank} of job {job}, @{}, is complete", part.set);
            Err(Error::new(Kind::Closed, what))
        }
        Some(part) => Ok(part.set),
        None => {
            let what = format!("no part {rank} of job {job}; start without --resume");
            Err(Error::new(Kind::NotFound, what))
        }
    }
}
