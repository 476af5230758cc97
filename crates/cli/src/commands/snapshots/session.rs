// SPDX-License-Identifier: Apache-2.0
//! `esker session`: manages change sets that collect changes over several commands.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::timestamp;
use esker_fs::job::JobId;
use esker_fs::repository::Repository;
use esker_fs::retention::marker::{self, MarkerHolder};
use esker_fs::session::open_sessions::OpenSession;
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};
use serde_json::json;

use super::{log, show};
use crate::change::{SessionSettings, TakeOver, resume, stop_mount_of};
use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::output::notice;
use crate::{text, usage, writers};

/// Begin, list, complete and drop sessions
///
/// A session is a change set that is not published yet. Commands work in it as @SETID:/path, and
/// `esker publish @SETID NAME` completes it.
#[derive(Args)]
#[command(after_help = "\
Example:
  id=$(esker session begin --base headers)
  esker rm -r $id:/linux
  date | esker put - $id:/DATE
  esker publish $id headers-2")]
pub struct SessionCommand {
    #[command(subcommand)]
    action: SessionAction,
}

#[derive(Subcommand)]
enum SessionAction {
    /// Begin a session and print its id
    #[command(after_help = "Example:\n  id=$(esker session begin --base fixes --base headers)")]
    Begin {
        /// Build on this snapshot; of several, earlier ones win
        #[arg(long = "base", value_name = "NAME", value_parser = StackArgument::parser())]
        bases: Vec<StackArgument>,
        /// Begin one writer's part of a job; `esker session job` prints ids
        #[arg(long, value_name = "JOBID", requires = "rank")]
        job: Option<JobId>,
        /// Number of the writer in the job; of conflicting changes, the lower rank's may win
        #[arg(long, value_name = "N", requires = "job")]
        rank: Option<u32>,
        #[command(flatten)]
        settings: SessionSettings,
    },
    /// Print a new id for a job of several writers
    ///
    /// Each writer begins and completes its own part, without waiting for the others. One of them,
    /// or a script after them, publishes all parts as one change set.
    #[command(after_help = "\
Example:
  job=$(esker session job)
  a=$(esker session begin --base headers --job $job --rank 0)
  b=$(esker session begin --base headers --job $job --rank 1)
  date | esker put - $a:/a; date | esker put - $b:/b
  esker session complete $a $b
  esker publish --job $job both")]
    Job,
    /// Complete parts of a job, which then accept no more changes
    #[command(after_help = "Example:\n  esker session complete @3f2a")]
    Complete {
        /// The parts
        #[arg(required = true, value_name = "@SETID", value_parser = StackArgument::parser())]
        stacks: Vec<StackArgument>,
        #[command(flatten)]
        settings: SessionSettings,
        #[command(flatten)]
        take_over: TakeOver,
    },
    /// List sessions that have no name yet
    ///
    /// Shows the contents of each session, and its current or last writer. `esker gc
    /// --sessions-older-than` drops abandoned sessions.
    #[command(after_help = "Example:\n  esker session list")]
    List,
    /// Show one session, as `esker show` does
    #[command(after_help = "Example:\n  esker session show @3f2a")]
    Show {
        /// The session
        #[arg(value_name = "@SETID", value_parser = StackArgument::parser())]
        stack: StackArgument,
    },
    /// Drop a session; `esker gc` frees its space
    #[command(after_help = "Example:\n  esker session drop @3f2a")]
    Drop {
        /// The session
        #[arg(value_name = "@SETID", value_parser = StackArgument::parser())]
        stack: StackArgument,
        #[command(flatten)]
        take_over: TakeOver,
    },
}

impl SessionCommand {
    /// Runs the action.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        match self.action {
            SessionAction::Begin { bases, job, rank, settings } => {
                begin(context, &bases, job.zip(rank), &settings)
            }
            SessionAction::Job => {
                let job = JobId::random().to_string();
                match context.out.is_json() {
                    true => context.out.json(json!({"job": job})),
                    false => context.out.line(job),
                }
            }
            SessionAction::Complete { stacks, settings, take_over } => {
                let repository = context.repository()?;
                stacks.iter().try_for_each(|stack| {
                    let set = context.set_of(&repository, stack)?;
                    let options = settings.options_to_resume(context, take_over);
                    resume(&repository, set, options)?.complete().map(drop)
                })
            }
            SessionAction::List => return list(context),
            SessionAction::Show { stack } => show::ShowCommand::of(stack).run(context),
            SessionAction::Drop { stack, take_over } => give_up(context, &stack, take_over),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

fn give_up(context: &CommandContext, stack: &StackArgument, take_over: TakeOver) -> Result<()> {
    let repository = context.repository()?;
    if let StackArgument::Name(name) = stack {
        let what = format!("{name} is a name, not a session: `esker delete {name}` deletes it");
        usage::exit(what);
    }
    let set = context.set_of(&repository, stack)?;
    match Manifest::load(&**repository.store(), set) {
        Err(error) if error.kind() == Kind::Corrupt => notice(format!(
            "{error}; the changes of @{set} are unreadable and lost; its bases are not"
        )),
        loaded => check_is_session(&repository, set, loaded?.state)?,
    }
    let options = SessionSettings::for_few().options_to_resume(context, take_over);
    repository.give_up(set, &options)?;
    if options.take_over {
        stop_mount_of(set);
    }
    match context.out.is_json() {
        true => context.out.json(json!({"dropped": set.to_string()})),
        false => context.out.line(format!("dropped @{set}; `esker gc` frees its space")),
    }
}

/// Fails for a published set: the command would report it as dropped although it stays.
fn check_is_session(repository: &Repository, set: SetId, state: SetState) -> Result<()> {
    if state != SetState::Sealed
        || marker::holders(&**repository.store(), set)?.iter().any(MarkerHolder::is_session)
    {
        return Ok(());
    }
    let names = repository.names()?;
    let what = match names.iter().find(|named| named.set == set) {
        Some(named) => {
            let name = &named.name;
            format!("@{set} is published as {name}: `esker delete {name}` deletes the name")
        }
        None => {
            format!("@{set} is complete, not a session; `esker gc` frees it unless others need it")
        }
    };
    Err(Error::new(Kind::Invalid, what))
}

fn begin(
    context: &CommandContext,
    bases: &[StackArgument],
    part: Option<(JobId, u32)>,
    settings: &SessionSettings,
) -> Result<()> {
    let repository = context.repository()?;
    let bases = context.sets_of(&repository, bases)?;
    let options = settings.options(context);
    let session = match part {
        Some((job, rank)) => repository.begin_part(job, rank, &bases, options)?,
        None => repository.begin(&bases, options)?,
    };
    let set = session.set();
    // As after any command, readers see the current state, including a new root if no base has one.
    session.end()?;
    if context.out.is_json() {
        return context.out.json(json!({"session": set.to_string()}));
    }
    context.out.line(format!("@{set}"))
}

fn list(context: &CommandContext) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for session in context.repository()?.open_sessions()? {
        if let Some(damage) = session.damage() {
            let set = session.node.set;
            notice(format!("@{set}: {damage}; `esker session drop @{set}` drops it"));
            code = ExitCode::from(Kind::Corrupt.exit_code());
        }
        if context.out.is_json() {
            context.out.json(object(&session))?;
        } else {
            context.out.line(line(&session, context.now_ns()))?;
        }
    }
    Ok(code)
}

/// A session as JSON; docs/guide/command.md describes it.
pub fn object(session: &OpenSession) -> serde_json::Value {
    let mut object = log::object(&session.node);
    object["writer"] = writers::object(session.hold.as_ref());
    object["log_bytes"] = session.log_bytes.into();
    if session.is_complete() {
        object["state"] = "complete".into();
    }
    let membership = session.node.manifest.as_ref().ok().and_then(|manifest| manifest.job);
    object["job"] = membership.map(|own| JobId(own.job).to_string()).into();
    object["rank"] = membership.and_then(|own| own.rank).into();
    object
}

/// A session on one line.
pub fn line(session: &OpenSession, now_ns: u64) -> String {
    let node = &session.node;
    let Ok(manifest) = &node.manifest else { return format!("@{}  damaged", node.set) };
    let begun = manifest.created_ns;
    let mut line = format!(
        "@{}  {}  {}, {} of data",
        node.set,
        text::minute(timestamp::of_clock(begun)),
        text::counted(node.rows, "record"),
        text::bytes(node.data_bytes),
    );
    if let Some(JobMembership { job, rank: Some(rank) }) = manifest.job {
        line += &format!(", part {rank} of job {}", JobId(job));
    }
    if let Some(name) = log::live_name(node) {
        line += &format!(", live namespace {name}");
    }
    if session.log_bytes > 0 {
        line += &format!(", {} not flushed", text::bytes(session.log_bytes));
    }
    if session.is_complete() {
        line += "  complete, without a name";
    }
    match &session.hold {
        Some(hold) => line + "  " + &writers::line(hold, now_ns),
        None => line,
    }
}
