//! `esker session`: change sets that take changes over several commands.

use clap::{Args, Subcommand};
use esker_base::{Kind, Result};
use esker_fs::job::JobId;
use esker_fs::marker::Holder;
use esker_table::manifest::{Manifest, SetState};
use serde_json::json;

use crate::change::SessionSettings;
use crate::commands::log;
use crate::context::{Context, set_of, sets_of};
use crate::location::Stack;
use crate::output::notice;
use crate::text;

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
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Begin a session and print its id
    #[command(after_help = "Example:\n  id=$(esker session begin --base fixes --base headers)")]
    Begin {
        /// Build on this snapshot; of several, earlier ones win
        #[arg(long = "base", value_name = "NAME", value_parser = Stack::parser())]
        bases: Vec<Stack>,
        /// Begin one writer's part of a job; `esker session job` gives ids
        #[arg(long, value_name = "JOBID", requires = "rank")]
        job: Option<JobId>,
        /// Which writer of the job; of changes that disagree, the lower rank's may win
        #[arg(long, value_name = "N", requires = "job")]
        rank: Option<u32>,
        #[command(flatten)]
        settings: SessionSettings,
    },
    /// Print a new id for a job of several writers
    ///
    /// Each writer begins its own part and completes it; nobody waits for anybody. One of them, or
    /// a script after them, publishes all parts as one change set.
    #[command(after_help = "\
Example:
  job=$(esker session job)
  a=$(esker session begin --base headers --job $job --rank 0)
  b=$(esker session begin --base headers --job $job --rank 1)
  date | esker put - $a:/a; date | esker put - $b:/b
  esker session complete $a $b
  esker publish --job $job both")]
    Job,
    /// Complete parts of a job, which takes no more changes then
    #[command(after_help = "Example:\n  esker session complete @3f2a")]
    Complete {
        /// The parts
        #[arg(required = true, value_name = "@SETID", value_parser = Stack::parser())]
        stacks: Vec<Stack>,
        #[command(flatten)]
        settings: SessionSettings,
    },
    /// List sessions that are open
    #[command(after_help = "Example:\n  esker session list")]
    List,
    /// Give a session up; `esker gc` frees its room
    #[command(after_help = "Example:\n  esker session drop @3f2a")]
    Drop {
        /// The session
        #[arg(value_name = "@SETID", value_parser = Stack::parser())]
        stack: Stack,
    },
}

impl SessionCommand {
    /// Runs the action.
    pub fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Begin { bases, job, rank, settings } => {
                begin(context, &bases, job.zip(rank), &settings)
            }
            Action::Job => {
                let job = JobId::random().to_string();
                match context.out.is_json() {
                    true => context.out.json(json!({"job": job})),
                    false => context.out.line(job),
                }
            }
            Action::Complete { stacks, settings } => {
                let repository = context.repository()?;
                stacks.iter().try_for_each(|stack| {
                    let set = set_of(&repository, stack)?;
                    repository.resume(set, settings.options(context))?.complete().map(drop)
                })
            }
            Action::List => list(context),
            Action::Drop { stack } => {
                let repository = context.repository()?;
                let set = set_of(&repository, &stack)?;
                match Manifest::load(&**repository.store(), set) {
                    Err(error) if error.kind() == Kind::Corrupt => notice(format!(
                        "{error}; what @{set} changed cannot be read and is lost; what it builds on is not"
                    )),
                    loaded => drop(loaded?),
                }
                repository.abandon(set)
            }
        }
    }
}

fn begin(
    context: &Context,
    bases: &[Stack],
    part: Option<(JobId, u32)>,
    settings: &SessionSettings,
) -> Result<()> {
    let repository = context.repository()?;
    let bases = sets_of(&repository, bases)?;
    let options = settings.options(context);
    let session = match part {
        Some((job, rank)) => repository.begin_part(job, rank, &bases, options)?,
        None => repository.begin(&bases, options)?,
    };
    let set = session.set();
    // As after any command, readers see what there is: a root of its own, if no base has one.
    session.flush()?;
    if context.out.is_json() {
        return context.out.json(json!({"session": set.to_string()}));
    }
    context.out.line(format!("@{set}"))
}

fn list(context: &Context) -> Result<()> {
    for node in context.repository()?.graph_of_all()? {
        // A session that was given up is only waiting for the next collection.
        let is_held = node.holders.contains(&Holder::Session);
        let Some(manifest) = node
            .manifest
            .as_ref()
            .ok()
            .filter(|manifest| is_held && manifest.state == SetState::Open)
        else {
            continue;
        };
        if context.out.is_json() {
            context.out.json(log::object(&node))?;
        } else {
            let (set, begun) = (node.set, text::minute(manifest.created_ns));
            let records = text::counted(node.rows, "record");
            context.out.line(format!("@{set}  {begun}  {records}"))?;
        }
    }
    Ok(())
}
