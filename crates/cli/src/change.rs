// SPDX-License-Identifier: Apache-2.0
//! Change: the snapshot or session that a command changes.
//!
//! Published snapshots never change. `NAME:/path` with `--as NEW` publishes the changes as a new
//! snapshot on top of NAME; `@SETID:/path` works in an open session and leaves it open and flushed,
//! so that the next command finds everything in tables.

use std::sync::mpsc;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use esker_base::store::{SharedStore, concurrent};
use esker_base::{Error, Kind, Result};
use esker_fs::names::{self, IfTaken};
use esker_fs::repository::Repository;
use esker_fs::session::{NewRoot, Session, SessionOptions};
use esker_fuse::{ControlRequest, ask, mountpoint_of};
use esker_table::manifest::SetId;
use esker_table::tree::{Durability, Heartbeat, TreeOptions};
use serde_json::json;

use crate::context::CommandContext;
use crate::interrupt;
use crate::location::StackArgument;
use crate::output::notice;
use crate::usage;
use crate::users::UserNames;

/// How long a command waits for a mount to notice that its session was taken over.
const MOUNT_PATIENCE: Duration = Duration::from_secs(2);

/// Durability of a session.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum DurabilityLevel {
    /// Survives nothing until the end: no log is written
    None,
    /// Survives the death of the process, and power loss up to the last sync
    #[default]
    Async,
    /// Survives everything: each change is synced before the next
    Always,
}

/// Settings of a session.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Session")]
pub struct SessionSettings {
    /// Durability of changes before the command ends; afterwards all are durable
    #[arg(long, value_enum, default_value_t, value_name = "LEVEL")]
    pub durability: DurabilityLevel,
    /// Memory for changes that are not in tables yet, such as 512M or 2G
    #[arg(long, default_value = "768M", value_parser = crate::quantity::bytes, value_name = "SIZE")]
    pub memory: u64,
}

impl SessionSettings {
    /// The settings for a session of a few changes.
    pub fn for_few() -> Self {
        Self { durability: DurabilityLevel::None, memory: 64 << 20 }
    }

    /// The settings for a session of many changes, all of which are lost if it does not end.
    pub fn for_many() -> Self {
        Self { durability: DurabilityLevel::None, memory: 768 << 20 }
    }

    /// The options of a session for the user of this process.
    pub fn options(&self, context: &CommandContext) -> SessionOptions {
        let durability = match self.durability {
            DurabilityLevel::None => Durability::None,
            DurabilityLevel::Async => Durability::Async,
            DurabilityLevel::Always => Durability::Always,
        };
        let memory_bytes = usize::try_from(self.memory).unwrap_or(usize::MAX);
        let tree = TreeOptions { durability, memory_bytes, ..TreeOptions::default() };
        let properties = [("program".to_owned(), program())].into();
        let new_root = NewRoot { owner: None, mode: 0o777 & !context.umask };
        let identity = context.identity();
        let user = UserNames::of_machine().user(identity.uid);
        let heartbeat = Some(Heartbeat::of_process(user));
        let own = SessionOptions::default();
        SessionOptions { identity, tree, properties, new_root, heartbeat, ..own }
    }

    /// The options for resuming a session.
    pub fn options_to_resume(
        &self,
        context: &CommandContext,
        take_over: TakeOver,
    ) -> SessionOptions {
        SessionOptions { take_over: take_over.take_over, ..self.options(context) }
    }
}

/// Treatment of a process that still writes the session a command resumes.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct TakeOver {
    /// Take the session over from the process that still writes it, which then stops
    #[arg(long, help_heading = "Session")]
    take_over: bool,
}

impl TakeOver {
    /// True if the option was given.
    pub fn is_given(self) -> bool {
        self.take_over
    }
}

/// The change set property that holds the publisher's message.
pub const MESSAGE: &str = "message";

/// Maximum bytes of a message.
const MESSAGE_BYTES_MAX: usize = 4096;

/// The message to store with a snapshot.
#[derive(Args, Clone, Debug, Default)]
pub struct MessageArgument {
    /// Store MESSAGE with the published snapshot; `esker log` shows it
    #[arg(short, long, value_parser = message_parser())]
    pub message: Option<String>,
}

impl MessageArgument {
    /// Returns the message as a property of a change set.
    pub fn property(&self) -> Option<(String, String)> {
        self.message.clone().map(|message| (MESSAGE.to_owned(), message))
    }

    /// Ends the command if a message was given for a session that it only resumes.
    pub fn refuse_in_session(&self) {
        if self.message.is_some() {
            usage::exit("a session gets its message when it is published: leave out --message")
        }
    }
}

/// Parses a message that a manifest can hold.
fn message_parser() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().try_map(|message: String| match message.len() {
        ..=MESSAGE_BYTES_MAX => Ok(message),
        bytes => Err(format!("{bytes} bytes; at most {MESSAGE_BYTES_MAX} are possible")),
    })
}

/// Treatment of a name that already stands for another snapshot.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct NameReplacement {
    /// Let the new name replace another snapshot: readers find the old or the new one, never none.
    /// Fails if somebody else has published under the name in the meantime
    #[arg(long)]
    pub replace: bool,
    /// Also replace what others have published under the name in the meantime, hiding their changes
    #[arg(long, requires = "replace")]
    hide_newer: bool,
}

impl NameReplacement {
    /// The setting for a publication.
    pub fn if_taken(self) -> IfTaken {
        match (self.replace, self.hide_newer) {
            (false, _) => IfTaken::Refuse,
            (true, false) => IfTaken::ReplaceUnlessMoved,
            (true, true) => IfTaken::Replace,
        }
    }

    /// Adds a remedy to `error`, with which a publication of `bases` as `name` failed: the option for a
    /// name that is taken, or the command that composes the bases with a name that has moved.
    pub fn advise(error: Error, bases: &[String], name: &str) -> Error {
        let advice = match error.kind() {
            Kind::Exists => {
                format!(
                    "choose another, or delete it first with `esker delete {name}`; --replace replaces it"
                )
            }
            Kind::Conflict => format!(
                "begin again from {name}; or {}, or hide it by --hide-newer",
                lay_over(bases, name)
            ),
            _ => return error,
        };
        Error::new(error.kind(), format!("{}; {advice}", error.context()))
    }

    /// Does the same for the open session `set`, which can be a base only once it is complete.
    pub fn advise_session(error: Error, set: SetId, name: &str) -> Error {
        if error.kind() != Kind::Conflict {
            return Self::advise(error, &[], name);
        }
        let spare = names::spare_name(name, set);
        let lay_over = lay_over(std::slice::from_ref(&spare), name);
        let what = format!(
            "{}; begin again from {name}; or publish the session by `esker publish @{set} {spare}`, \
             then {lay_over}; or hide {name} by --hide-newer",
            error.context()
        );
        Error::new(error.kind(), what)
    }
}

/// Returns, as part of a remedy, the command that composes `bases` with `name`.
fn lay_over(bases: &[String], name: &str) -> String {
    let bases: String = bases.iter().map(|base| format!("--base {base} ")).collect();
    format!("lay it over that by `esker publish --replace {bases}--base {name} {name}`")
}

/// Resumes the session `set`. If that takes it over from a mount of this machine, that mount refuses
/// changes once this returns.
pub fn resume(repository: &Repository, set: SetId, options: SessionOptions) -> Result<Session> {
    let takes_over = options.take_over;
    let session = repository.resume(set, options)?;
    if takes_over {
        stop_mount_of(set);
    }
    Ok(session)
}

/// Makes the mount of this machine that wrote `set`, if there is one, notice that it was taken over.
/// Without that it notices at its next beat. A mount that does not answer, since its process is
/// stopped, is not waited for.
pub fn stop_mount_of(set: SetId) {
    let (sender, receiver) = mpsc::channel();
    drop(std::thread::spawn(move || {
        if let Some(mountpoint) = mountpoint_of(&set.to_string()) {
            // The answer is that it was taken over.
            let _ = ask(&mountpoint, &ControlRequest::CheckWriter);
        }
        let _ = sender.send(());
    }));
    let _ = receiver.recv_timeout(MOUNT_PATIENCE);
}

/// The program that made a change set, for `esker show`.
fn program() -> String {
    concat!("esker ", env!("CARGO_PKG_VERSION")).to_owned()
}

/// Destination of the changes.
#[derive(Args, Clone, Debug)]
pub struct ChangeArguments {
    /// Publish the changes as NEWNAME, on top of the name in the path
    #[arg(long = "as", value_name = "NEWNAME")]
    pub new_name: Option<String>,
    /// What is kept with the snapshot
    #[command(flatten)]
    pub message: MessageArgument,
    /// Settings of the session
    #[command(flatten)]
    pub settings: SessionSettings,
    /// Treatment of another writer of the session
    #[command(flatten)]
    pub take_over: TakeOver,
}

/// A session in which a command makes changes.
pub struct ChangedSession {
    /// The session.
    pub session: Session,
    repository: Repository,
    new_name: Option<String>,
    /// The snapshot beneath the changes, as the user wrote it.
    base: Option<String>,
    /// Treatment of the name if it stands for another set.
    if_taken: IfTaken,
    is_ours: bool,
}

impl ChangedSession {
    /// Opens a session to change the contents of `stack`.
    pub fn open(
        context: &CommandContext,
        stack: &StackArgument,
        arguments: &ChangeArguments,
    ) -> Result<Self> {
        let new_name = arguments.new_name.clone();
        let mut options = arguments.settings.options_to_resume(context, arguments.take_over);
        if let StackArgument::Set(_) = stack {
            arguments.message.refuse_in_session();
        }
        options.properties.extend(arguments.message.property());
        new_name.iter().for_each(|name| usage::check_name(name));
        let (store, base) =
            context.store_while(|store| resolve_stack(store, stack, new_name.as_deref()))?;
        let repository = Repository::new(store);
        if let StackArgument::Set(_) = stack {
            let what = "the session keeps its changes so far; the same command again does the rest";
            interrupt::advise(what.to_owned());
        }
        let (session, is_ours) = match (stack, &new_name) {
            (StackArgument::Name(name), None) => {
                let context = format!(
                    "{name} is published and never changes: add `--as NEWNAME` to publish the \
                     result under another name, or work in a session: `esker session begin --base \
                     {name}`"
                );
                return Err(Error::new(Kind::Invalid, context));
            }
            (StackArgument::Name(_), Some(_)) => {
                let bases: Vec<SetId> = base.into_iter().collect();
                (repository.begin(&bases, options.private())?, true)
            }
            (StackArgument::Set(_), _) => {
                (resume(&repository, context.set_of(&repository, stack)?, options)?, false)
            }
        };
        let base = is_ours.then(|| stack.to_string());
        Ok(Self { session, repository, new_name, base, if_taken: IfTaken::Refuse, is_ours })
    }

    /// Begins a session on top of `bases` to be published as `new_name`.
    pub fn begin(
        context: &CommandContext,
        bases: &[SetId],
        (new_name, source): (&str, NewNameSource),
        options: SessionOptions,
    ) -> Result<Self> {
        let repository = context.repository()?;
        check_free(&repository, new_name, source)?;
        Self::begin_in(repository, bases, new_name, options)
    }

    /// Begins a session on top of `bases`, the set that `name` stands for. The result replaces
    /// `name`, unless the name has moved by then.
    pub fn begin_succeeding(
        context: &CommandContext,
        bases: &[SetId],
        name: &str,
        options: SessionOptions,
    ) -> Result<Self> {
        let begun = Self::begin_in(context.repository()?, bases, name, options)?;
        Ok(Self { if_taken: IfTaken::ReplaceUnlessMoved, ..begun })
    }

    fn begin_in(
        repository: Repository,
        bases: &[SetId],
        new_name: &str,
        options: SessionOptions,
    ) -> Result<Self> {
        let session = repository.begin(bases, options.private())?;
        let base = bases.first().map(|set| format!("@{set}"));
        let (new_name, if_taken) = (Some(new_name.to_owned()), IfTaken::Refuse);
        Ok(Self { session, repository, new_name, base, if_taken, is_ours: true })
    }

    /// Runs `work` in the session, then publishes or flushes it. If `work` fails, a session that
    /// this command began is abandoned; one that was open before keeps the changes made so far.
    pub fn run<T>(
        self,
        context: &CommandContext,
        work: impl FnOnce(&Session) -> Result<T>,
    ) -> Result<T> {
        let name = self.new_name.clone();
        let set = self.session.set();
        let done = self.run_silently(work)?;
        name.map_or(Ok(()), |name| announce(context, &name, set)).map(|()| done)
    }

    /// As [`ChangedSession::run`], without printing what was published.
    pub fn run_silently<T>(self, work: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
        let done = work(&self.session);
        let base = self.base.clone();
        let finished = match &done {
            Ok(_) => self.finish(),
            Err(_) if self.is_ours => {
                self.give_up();
                Ok(())
            }
            Err(_) => self.session.end(),
        };
        let done = done.map_err(|error| match base {
            Some(base) if error.kind() == Kind::Denied => over_others(&base, &error),
            _ => error,
        })?;
        finished.map(|()| done)
    }

    fn finish(&self) -> Result<()> {
        let Some(name) = &self.new_name else { return self.session.end() };
        interrupt::advise(format!("`esker names` shows whether {name} was published"));
        let set = self.session.set();
        let published = match self.if_taken {
            IfTaken::Refuse => self.session.publish(name).map(drop),
            if_taken => self
                .session
                .complete()
                .and_then(|set| self.repository.publish_replacing(set, name, if_taken).map(drop)),
        };
        published.map_err(|error| {
            // A user may publish it under another name. The original error matters more.
            if let Err(error) = self.keep() {
                notice(format!("@{set} may go with the next `esker gc`: {error}"));
            }
            let advice = self.advice(name, error.kind());
            error.within(advice)
        })
    }

    /// Returns the remedy after a publication as `name` failed; the session stays.
    fn advice(&self, name: &str, kind: Kind) -> String {
        let set = self.session.set();
        let spare = names::spare_name(name, set);
        match (kind, self.if_taken) {
            // A composition would show the entry of one base, and hide the other's epochs.
            (Kind::Conflict, IfTaken::ReplaceUnlessMoved) => format!(
                "session @{set} stays: run the same command again, on top of what {name} shows now, \
                 and give the session up by `esker session drop @{set}`; or give what it has a name \
                 of its own by `esker publish @{set} {spare}`"
            ),
            (Kind::Unavailable, IfTaken::Refuse) => {
                format!("session @{set} stays; publish it by `esker publish @{set} {name}`")
            }
            (Kind::Unavailable, _) => format!(
                "session @{set} stays; publish it by `esker publish --replace @{set} {name}`"
            ),
            _ => format!("session @{set} stays; publish it by `esker publish @{set} {spare}`"),
        }
    }

    /// Leaves the session so that another command can resume or publish it.
    fn keep(&self) -> Result<()> {
        match self.session.end() {
            Err(error) if error.kind() == Kind::Closed => {
                self.repository.keep_complete(self.session.set())
            }
            ended => ended,
        }
    }

    fn give_up(&self) {
        // The remains are garbage either way; the original error matters more.
        if let Err(error) = self.repository.abandon_session(&self.session) {
            notice(format!("could not drop session @{}: {error}", self.session.set()));
        }
    }
}

/// Adds a remedy to an error about mode bits in the snapshot `base` that denied a change.
fn over_others(base: &str, error: &Error) -> Error {
    let advice = format!(
        "in {base} it belongs to a user who does not let you change it; publish your own tree and \
         compose the two, yours first (`esker publish --help` has an example)"
    );
    Error::new(error.kind(), format!("{error}: {advice}"))
}

/// Where the user wrote the name of something new, which decides what helps if it is taken.
#[derive(Clone, Copy, Debug)]
pub enum NewNameSource {
    /// It is an argument of its own.
    Argument,
    /// It is an argument of a command that has [`NameReplacement`], which adds its own advice.
    Publication,
    /// After `--as` or `--write`.
    Option(&'static str),
    /// It is the name in a path, and `--as` was not given.
    Path,
}

impl NewNameSource {
    /// The source of a name that is `new_name` if that was given by `--as`, otherwise in a path.
    pub fn of_option(new_name: Option<&str>) -> Self {
        if new_name.is_some() { Self::Option("--as") } else { Self::Path }
    }

    /// Adds a remedy to `error` if it says that the name is taken.
    pub fn advise(self, error: Error, name: &str) -> Error {
        if error.kind() != Kind::Exists {
            return error;
        }
        let advice = match self {
            Self::Argument => {
                format!("choose another, or delete it first with `esker delete {name}`")
            }
            Self::Publication => return error,
            Self::Option(option) => format!("give another one with {option}"),
            Self::Path => {
                "publish the result on top of it by --as NEWNAME, or choose another".into()
            }
        };
        Error::new(error.kind(), format!("{}; {advice}", error.context()))
    }
}

/// Fails if `name`, from `source`, is taken; ends the command if it is not a valid name.
pub fn check_free(repository: &Repository, name: &str, source: NewNameSource) -> Result<()> {
    usage::check_name(name);
    check_free_in(repository.store(), name).map_err(|error| source.advise(error, name))
}

fn check_free_in(store: &SharedStore, name: &str) -> Result<()> {
    if names::is_taken(&**store, name)? {
        return Err(names::taken(name));
    }
    Ok(())
}

/// The set behind `stack`, if `stack` is a name; fails if `new_name` is taken.
fn resolve_stack(
    store: &SharedStore,
    stack: &StackArgument,
    new_name: Option<&str>,
) -> Result<Option<SetId>> {
    let check = || {
        let Some(name) = new_name else { return Ok(()) };
        let as_option = NewNameSource::Option("--as");
        check_free_in(store, name).map_err(|error| as_option.advise(error, name))
    };
    let resolve = || match stack {
        StackArgument::Name(name) => names::resolve(&**store, name).map(|named| Some(named.set)),
        StackArgument::Set(_) => Ok(None),
    };
    concurrent::try_join(&**store, check, resolve).map(|((), base)| base)
}

/// Prints what was published.
pub fn announce(context: &CommandContext, name: &str, set: SetId) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(json!({"published": name, "set": set.to_string()}));
    }
    context.out.line(format!("published {name} @{set}"))
}
