// SPDX-License-Identifier: Apache-2.0
//! `esker live`: live namespaces, which many clients change at once through a server.

mod files;
mod import;
mod ls;
mod mkdir;
mod mv;
mod put;
mod rm;
mod serve;
mod standby;
mod stat;
mod top;
mod trees;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, Subcommand};
use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::timestamp;
use esker_fs::names::live_namespace::{LiveNamespace, SEATS_MAX};
use esker_fs::repository::Repository;
use esker_fs::session::hold::HolderState;
use esker_live::client::{LiveClientOptions, WaitNotice};
use esker_live::server_address::ServerAddress;
use esker_live::{LiveConnection, LiveTree};
use esker_table::manifest::{Manifest, SetId};
use serde_json::json;

use self::files::LiveFileAction;
use self::import::LiveImportArguments;
use self::serve::ServeArguments;
use self::top::TopArguments;
use crate::change::{SessionSettings, TakeOver};
use crate::context::CommandContext;
use crate::location::{StackArgument, StackPath};
use crate::output::notice;
use crate::{text, usage};

/// Time for which a status waits for a server.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// Serve one tree that many clients change at once
///
/// A live namespace is a tree that many clients change through a server, and see the changes of
/// others at once. Any user can run a server, on any machine that has the store; when it dies,
/// another continues, and clients go on. Snapshots of it are published like any other.
#[derive(Args)]
#[command(after_help = "\
Example:
  esker live create run --base headers
  esker live serve run &
  esker live mkdir run:/results
  date | esker live put - run:/results/date
  esker live ls run:/results
  esker live snapshot run run-1")]
pub struct LiveCommand {
    #[command(subcommand)]
    action: LiveAction,
}

#[derive(Subcommand)]
enum LiveAction {
    /// Make a live namespace, which a server can then serve
    ///
    /// Its directories are spread over its seats: change sets, each of which one server at a time
    /// writes. One seat is enough for a million changes a second.
    #[command(after_help = "\
Examples:
  esker live create run --base headers
  esker live create run --seats 4         up to four servers, on one machine or on several")]
    Create {
        /// Its name; those of snapshots are apart
        name: String,
        /// Begin with this snapshot; of several, earlier ones win
        #[arg(long = "base", value_name = "NAME", value_parser = StackArgument::parser())]
        bases: Vec<StackArgument>,
        /// Number of seats, which stays; the directories of --base are at the first one
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=SEATS_MAX as i64))]
        seats: u16,
        #[command(flatten)]
        settings: SessionSettings,
    },
    Serve(ServeArguments),
    /// List live namespaces and their servers
    #[command(after_help = "Example:\n  esker live list")]
    List,
    /// Ask the server of a live namespace for its counters
    #[command(after_help = "Example:\n  esker live status run --json")]
    Status {
        /// The live namespace
        name: String,
    },
    Top(TopArguments),
    /// Publish the current state of a live namespace as a snapshot
    #[command(after_help = "Example:\n  esker live snapshot run run-1")]
    Snapshot {
        /// The live namespace
        name: String,
        /// Name of the snapshot
        snapshot: String,
    },
    /// Remove a live namespace, whose server must have ended; snapshots of it stay, and `esker gc`
    /// frees the rest
    #[command(after_help = "Example:\n  esker live remove run")]
    Remove {
        /// The live namespace
        name: String,
        #[command(flatten)]
        take_over: TakeOver,
    },
    #[command(flatten)]
    File(LiveFileAction),
    Import(LiveImportArguments),
    /// Make a directory in the root of a snapshot a new directory of a live namespace, at once
    ///
    /// The snapshot must come from insertable sessions of a program, such as the parts of a job that
    /// each wrote some files of the directory, and stays. One directory of a snapshot, or of a job,
    /// can be inserted, once.
    #[command(after_help = "Example:\n  esker live insert step-7:/step run:/results/step-7")]
    Insert {
        /// The directory
        #[arg(value_name = "NAME:/dir", value_parser = StackPath::parser())]
        from: StackPath,
        /// The directory that it becomes, in one that exists
        #[arg(value_name = "NAME:/path", value_parser = StackPath::parser())]
        to: StackPath,
    },
}

impl LiveCommand {
    /// The line to print if a signal ends the command before it changes anything; `None` if it needs none.
    pub fn advice_at_begin(&self) -> Option<&'static str> {
        match self.action {
            LiveAction::Import(_) => {
                Some("nothing was inserted; the same command again does all of it")
            }
            LiveAction::File(LiveFileAction::Put(_)) => Some("nothing was written"),
            _ => None,
        }
    }

    /// Runs the action.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        match self.action {
            LiveAction::Create { name, bases, seats, settings } => {
                usage::check_name(&name);
                let repository = context.repository()?;
                let bases = context.sets_of(&repository, &bases)?;
                let live = repository.create_live(
                    &name,
                    &bases,
                    seats.into(),
                    settings.options(context),
                )?;
                match context.out.is_json() {
                    true => context.out.json(object(&live, &vec![None; live.seats.len()])),
                    false => context.out.line(format!(
                        "made {name} (@{}); `esker live serve {name}` serves it",
                        live.seats[0]
                    )),
                }
            }
            LiveAction::Serve(arguments) => arguments.run(context),
            LiveAction::List => list(context),
            LiveAction::Status { name } => show_seats(context, &name),
            LiveAction::Top(arguments) => arguments.run(context),
            LiveAction::Snapshot { name, snapshot } => {
                let mut tree = connect(&context.store()?, &name)?;
                let set = tree.snapshot(&snapshot)?;
                tree.close()?;
                match context.out.is_json() {
                    true => context.out.json(json!({"name": snapshot, "set": set.to_string()})),
                    false => context.out.line(format!("published {snapshot} (@{set})")),
                }
            }
            LiveAction::Remove { name, take_over } => {
                let repository = context.repository()?;
                let options = SessionSettings::for_few().options_to_resume(context, take_over);
                repository.remove_live(&name, &options).map_err(|error| {
                    let live = LiveNamespace::load(&**repository.store(), &name).ok();
                    let served = live.and_then(|live| served_seats(&repository, &live).ok());
                    match served.and_then(|seats| seats.into_iter().flatten().next()) {
                        Some(ServerAddress { pid, host, .. }) if error.kind() == Kind::Conflict => {
                            let what = format!(
                                "{name} is served by process {pid} on {host}: end that server first"
                            );
                            Error::new(Kind::Conflict, what).with_source(error)
                        }
                        _ => error,
                    }
                })?;
                match context.out.is_json() {
                    true => context.out.json(json!({"removed": name})),
                    false => {
                        context.out.line(format!("removed {name}; `esker gc` frees its space"))
                    }
                }
            }
            LiveAction::File(action) => return action.run(context),
            LiveAction::Import(arguments) => return arguments.run(context),
            LiveAction::Insert { from, to } => import::insert(context, &from, &to),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Connects to the server of the live namespace `name`. Tells the user what it waits for.
pub fn connect(store: &SharedStore, name: &str) -> Result<LiveTree> {
    let notice = Some(WaitNotice::new(notice));
    LiveTree::connect(store, name, LiveClientOptions { notice, ..LiveClientOptions::default() })
}

/// Returns the name of the live namespace in `path`.
pub fn live_name(path: &StackPath) -> &str {
    match &path.stack {
        StackArgument::Name(name) => name,
        _ => usage::exit(format!(
            "{path}: a live namespace has a name; `esker live list` shows them"
        )),
    }
}

fn list(context: &CommandContext) -> Result<()> {
    let repository = context.repository()?;
    let store = &**repository.store();
    for live in LiveNamespace::all(store)? {
        let servers = served_seats(&repository, &live)?;
        if context.out.is_json() {
            context.out.json(object(&live, &servers))?;
            continue;
        }
        let made = text::minute(timestamp::of_clock(live.created_ns));
        let server = match &servers[..] {
            [server] => server_text(server.as_ref()),
            servers if servers.iter().all(Option::is_none) => {
                format!("{} seats, no server", servers.len())
            }
            servers => format!("{} seats", servers.len()),
        };
        context.out.line(format!("{}  @{}  {made}  {server}", live.name, live.seats[0]))?;
        let is_shown = servers.len() > 1 && servers.iter().any(Option::is_some);
        for (seat, server) in servers.iter().enumerate().filter(|_| is_shown) {
            context.out.line(format!("  seat {seat}: {}", server_text(server.as_ref())))?;
        }
    }
    Ok(())
}

fn server_text(server: Option<&ServerAddress>) -> String {
    match server {
        Some(server) => {
            let place = server.tcp.as_deref().unwrap_or("this machine only");
            format!("server on {} (process {}; {place})", server.host, server.pid)
        }
        None => "no server".to_owned(),
    }
}

/// Returns the server of each seat of `live`; `None` where the last one is known to be gone.
fn served_seats(
    repository: &Repository,
    live: &LiveNamespace,
) -> Result<Vec<Option<ServerAddress>>> {
    let store = &**repository.store();
    let server = |(seat, set): (u16, &SetId)| {
        let newest = ServerAddress::all(store, (&live.name, seat))?.into_iter().next();
        Ok(newest.filter(|_| is_served(repository, *set)))
    };
    (0..).zip(&live.seats).map(server).collect()
}

/// False if the last server of `set` is known to be gone: it left its address.
fn is_served(repository: &Repository, set: SetId) -> bool {
    let state = writer_state(repository, set);
    !matches!(state, Some(HolderState::Ended | HolderState::Released))
}

/// The state of the last writer of `set`; `None` if there was none, or that cannot be read.
fn writer_state(repository: &Repository, set: SetId) -> Option<HolderState> {
    let manifest = Manifest::load(&**repository.store(), set);
    let hold = manifest.and_then(|manifest| repository.hold(set, &manifest));
    hold.ok().flatten().map(|hold| hold.state)
}

/// A live namespace as JSON; docs/guide/command.md describes it.
fn object(live: &LiveNamespace, servers: &[Option<ServerAddress>]) -> serde_json::Value {
    let seats = live.seats.iter().zip(servers);
    let seats = seats.map(|(set, server)| json!({"set": set.to_string(), "server": server}));
    json!({
        "name": live.name,
        "set": live.seats[0].to_string(),
        "created_ns": live.created_ns,
        "server": servers[0],
        "seats": seats.collect::<Vec<_>>(),
    })
}

/// Shows the state of each seat; fails at the end if one has no server.
fn show_seats(context: &CommandContext, name: &str) -> Result<()> {
    let store = context.store()?;
    let seats = u16::try_from(LiveNamespace::load(&*store, name)?.seats.len()).expect("few");
    let ask = |seat| {
        let options =
            LiveClientOptions { patience: STATUS_PATIENCE, ..LiveClientOptions::default() };
        let mut connection = LiveConnection::connect(&store, (name, seat), options)?;
        let status = connection.status()?;
        connection.close()?;
        Ok(status)
    };
    // All at once: each that has no server takes as long as the patience.
    let answers: Vec<Result<serde_json::Value>> = thread::scope(|scope| {
        let asked: Vec<_> = (0..seats).map(|seat| scope.spawn(move || ask(seat))).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().expect("a status is no reason to panic"))
            .collect()
    });
    let mut failure = None;
    for (seat, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(status) if context.out.is_json() => context.out.json(status)?,
            Ok(status) => show_status(context, (&status, seats))?,
            Err(error) if error.kind() == Kind::Unavailable => {
                if !context.out.is_json() {
                    context.out.line(format!("seat {seat}: no server answers"))?;
                }
                failure.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    failure.map_or(Ok(()), Err)
}

fn show_status(context: &CommandContext, (status, seats): (&serde_json::Value, u16)) -> Result<()> {
    if seats > 1 {
        let entries = status["session"]["entries"].as_u64().unwrap_or(0);
        let entries = text::counted(entries, "record");
        context.out.line(format!("seat {}: {entries} in tables", status["seat"]))?;
    }
    let counters = &status["counters"];
    let of = |counter: &str| counters[counter].as_u64().unwrap_or(0);
    context.out.line(format!(
        "@{}, epoch {}: {}, {} of processor time",
        status["set"].as_str().unwrap_or("?"),
        status["epoch"],
        text::counted(status["clients"].as_u64().unwrap_or(0), "client"),
        format_args!("{:.1} s", status["processor_ns"].as_u64().unwrap_or(0) as f64 / 1e9),
    ))?;
    context.out.line(format!(
        "{} and {}, of which {} and {} were repeated; {}",
        text::counted(of("changes"), "change"),
        text::counted(of("reads"), "read"),
        text::counted(of("failures"), "failure"),
        of("repeated"),
        text::counted(of("commits"), "sync"),
    ))
}
