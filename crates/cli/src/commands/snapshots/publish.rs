// SPDX-License-Identifier: Apache-2.0
//! `esker publish`: gives a name to a session, a snapshot or a stack of snapshots.

use clap::{Args, ValueEnum};
use esker_base::{Error, Kind, Result};
use esker_fs::inode::DirId;
use esker_fs::job::{ConflictKind, JobId, JobPart, JobReport, PartConflict};
use esker_fs::names::{self, IfTaken};
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::traversal::conflicts::{
    BaseConflict, ComposedBases, ConflictingVersion, DirectoryConflict,
};
use esker_table::manifest::{Manifest, SetId, SetState};
use serde_json::json;

use crate::change::{
    ChangedSession, MessageArgument, NameReplacement, NewNameSource, SessionSettings, TakeOver,
    announce, check_free, resume,
};
use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::output::notice;
use crate::{text, usage};

/// Publish a session, or compose snapshots
///
/// `publish @SETID NAME` completes a session and publishes it. `publish OTHER NAME` gives a
/// published snapshot another name. `publish --base A --base B NAME` composes snapshots:
/// directories of the same name merge, and of files with the same name the earlier base's is shown.
///
/// With --replace, NAME may stand for another snapshot. If both build on the same base, and
/// somebody has published under NAME since, that is a conflict (exit code 9): their changes are not
/// hidden unless --hide-newer is given.
///
/// Two bases conflict at a file that both have changed since their common base and that differs, and
/// at a directory that they moved to different places, all of which are shown. If bases have no common
/// base, all differing files conflict. --conflicts selects the outcome. With
/// `report` the earlier base's version is shown, and each conflict is printed. `refuse` prints the
/// conflicts, publishes nothing and exits with 9. `newest` shows the version that was modified
/// last, or nothing if that is a removal, by copying it; for equal times the earlier base
/// wins. All names of a file with hard links show that version. Where it cannot show it (a directory
/// that one base removed or replaced while another changed its entries, or that several moved; a
/// file of which one base removed all names while another changed it through one of them), it
/// publishes nothing and exits with 9. `first` shows the earlier base's version without searching for conflicts; all others read
/// the records of layers that not all bases share.
///
/// `publish --job JOBID NAME` joins the parts of several writers; see `esker session job --help`.
///
/// Without a search for conflicts, publishing takes the same time whatever the size. A published
/// name survives power loss.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker publish @3f2a climate-7 -m 'with the new clouds'
  esker publish climate-7 latest
  esker publish --replace climate-8 latest
  esker publish --base fixes --base climate-7 climate-7.1
  esker publish --base ours --base theirs --conflicts refuse merged
  esker publish --job $job --parts 4 --conflicts refuse result")]
pub struct PublishCommand {
    /// What to publish, then its new name; with --base only the name
    #[arg(required = true, num_args = 1..=2, value_name = "[SOURCE] NAME")]
    arguments: Vec<String>,
    /// Compose this snapshot; of several, earlier ones win
    #[arg(long = "base", value_name = "NAME", value_parser = StackArgument::parser())]
    bases: Vec<StackArgument>,
    /// Treatment of files that several bases, or several parts of a job, changed differently; those of
    /// parts are reported or refused
    #[arg(long, value_enum, default_value_t = ConflictPolicy::Report, value_name = "HOW")]
    conflicts: ConflictPolicy,
    #[command(flatten)]
    replacing: NameReplacement,
    #[command(flatten)]
    message: MessageArgument,
    /// Publish the completed parts of a job as one
    #[arg(long, value_name = "JOBID", conflicts_with_all = ["bases", "replace"])]
    job: Option<JobId>,
    /// Fail unless the job has this many parts
    #[arg(long, value_name = "N", requires = "job")]
    parts: Option<usize>,
    #[command(flatten)]
    settings: SessionSettings,
    #[command(flatten)]
    take_over: TakeOver,
}

/// Treatment of files that several bases or parts changed differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ConflictPolicy {
    /// Print conflicts, and show the earlier base's version or that of one part
    Report,
    /// Print conflicts, publish nothing, and exit with 9
    Refuse,
    /// Show the version that was modified last
    Newest,
    /// Show the earlier base's version, without searching for conflicts
    First,
}

impl PublishCommand {
    /// Publishes.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        usage::check_name(self.arguments.last().expect("clap asks for one"));
        self.check_policy();
        if let (Some(job), [name]) = (self.job, &self.arguments[..]) {
            return self.publish_job(context, job, name);
        }
        match (&self.arguments[..], &self.bases[..]) {
            _ if self.job.is_some() => usage::exit("with --job give only the name of the snapshot"),
            ([name], bases @ [_, ..]) => {
                let bases = context.sets_of(&context.repository()?, bases)?;
                if self.replacing.replace {
                    return self.compose_replacing(context, &bases, name);
                }
                let mut options = self.settings.options(context);
                options.properties.extend(self.message.property());
                let published_by = (name.as_str(), NewNameSource::Publication);
                let change = ChangedSession::begin(context, &bases, published_by, options);
                change
                    .map_err(|error| NameReplacement::advise(error, &self.base_names(), name))?
                    .run(context, |session| self.resolve_conflicts(context, &bases, session))
            }
            ([source, name], []) => self.publish(context, source, name),
            ([_], []) => usage::exit(
                "publish what? Give a session or snapshot and its new name, or --base and a name: \
                 `esker publish --help` has examples",
            ),
            _ => usage::exit("a source and --base exclude each other; begin a session with --base"),
        }
    }

    /// Exits if `--conflicts` has no meaning for what is published.
    fn check_policy(&self) {
        let fits = match self.conflicts {
            ConflictPolicy::Report => true,
            ConflictPolicy::Refuse => self.job.is_some() || !self.bases.is_empty(),
            ConflictPolicy::Newest | ConflictPolicy::First => !self.bases.is_empty(),
        };
        if !fits {
            usage::exit(match self.job {
                Some(_) => "the conflicts of a job are reported or refused",
                None => {
                    "--conflicts is for several snapshots (--base) or the parts of a job (--job)"
                }
            });
        }
    }

    fn publish(&self, context: &CommandContext, source: &str, name: &str) -> Result<()> {
        let repository = context.repository()?;
        let source = usage::stack(source);
        let set = context.set_of(&repository, &source)?;
        let manifest = Manifest::load(&**repository.store(), set)?;
        let is_open = manifest.state == SetState::Open;
        self.check_name(&repository, set, name).map_err(|error| match is_open {
            true => NameReplacement::advise_session(error, set, name),
            false => NameReplacement::advise(error, &[source.to_string()], name),
        })?;
        let in_source = |error| NameReplacement::advise(error, &[format!("@{set}")], name);
        if is_open {
            self.publish_session(context, &repository, set, name)?;
        } else if self.message.message.is_some() {
            let what = format!("{source} is complete and keeps its message");
            return Err(Error::new(Kind::Invalid, what));
        } else {
            self.publish_complete(&repository, set, name).map_err(in_source)?;
        }
        announce(context, name, set)
    }

    /// Fails if it can be told by now that `set` cannot be published as `name`, before a session is
    /// completed, which takes no more changes then.
    fn check_name(&self, repository: &Repository, set: SetId, name: &str) -> Result<()> {
        if self.replacing.if_taken() == IfTaken::ReplaceUnlessMoved {
            return repository.check_not_moved(&[set], name);
        }
        if self.replacing.replace {
            return Ok(());
        }
        // Published already, it may be that the answer to an earlier attempt was lost.
        names::check_free_for(&**repository.store(), name, set)
    }

    /// Completes the session `set` and publishes it.
    fn publish_session(
        &self,
        context: &CommandContext,
        repository: &Repository,
        set: SetId,
        name: &str,
    ) -> Result<()> {
        repository.check_not_live(set)?;
        let options = self.settings.options_to_resume(context, self.take_over);
        let session = resume(repository, set, options)?;
        let message = self.message.property();
        let completes = self.replacing.replace || message.is_some();
        let published = match completes {
            false => session.publish(name).map(drop),
            true => session.complete().map(drop),
        };
        published.inspect_err(|_| {
            // It stays, for whoever publishes it under another name. The error matters more.
            let _ = session.end();
        })?;
        if let Some((property, message)) = message {
            repository.set_property(set, property, message)?;
        }
        if !completes {
            return Ok(());
        }
        let published = self.publish_complete(repository, set, name);
        published.map_err(|error| NameReplacement::advise(error, &[format!("@{set}")], name))
    }

    fn publish_complete(&self, repository: &Repository, set: SetId, name: &str) -> Result<()> {
        match self.replacing.if_taken() {
            IfTaken::Refuse => repository.publish(set, name),
            if_taken => repository.publish_replacing(set, name, if_taken).map(drop),
        }
    }

    /// The bases, as the user wrote them.
    fn base_names(&self) -> Vec<String> {
        self.bases.iter().map(StackArgument::to_string).collect()
    }

    fn compose_replacing(
        &self,
        context: &CommandContext,
        bases: &[SetId],
        name: &str,
    ) -> Result<()> {
        let repository = context.repository()?;
        if self.replacing.if_taken() == IfTaken::ReplaceUnlessMoved {
            let checked = repository.check_not_moved(bases, name);
            checked.map_err(|error| NameReplacement::advise(error, &self.base_names(), name))?;
        }
        let mut options = self.settings.options(context).private();
        options.properties.extend(self.message.property());
        let session = repository.begin(bases, options)?;
        let set = session.set();
        let resolved = self.resolve_conflicts(context, bases, &session);
        resolved.and_then(|()| session.complete()).inspect_err(|_| {
            if let Err(error) = repository.abandon(set) {
                notice(format!("could not drop session @{set}: {error}"));
            }
        })?;
        self.publish_complete(&repository, set, name).map_err(|error| {
            // Keep it for another command. The original error matters more.
            let _ = repository.keep_complete(set);
            match error.kind() {
                Kind::Conflict => NameReplacement::advise(error, &[format!("@{set}")], name)
                    .within(format!("@{set} stays")),
                _ => error.within(format!(
                    "@{set} stays; publish it by `esker publish --replace @{set} {name}`"
                )),
            }
        })?;
        announce(context, name, set)
    }
}

impl PublishCommand {
    /// Finds conflicts among `bases`, on which `session` was begun, and treats them as requested.
    fn resolve_conflicts(
        &self,
        context: &CommandContext,
        bases: &[SetId],
        session: &Session,
    ) -> Result<()> {
        if self.conflicts == ConflictPolicy::First || bases.len() < 2 {
            return Ok(());
        }
        let composition = ComposedBases::open(&context.repository()?, bases)?;
        let mut count = 0u64;
        let mut print = |conflict: &BaseConflict, shown: usize| {
            count += 1;
            self.print_conflict(context, bases, conflict, shown)
        };
        match self.conflicts {
            ConflictPolicy::Newest => session.show_newest_versions(&composition, &mut print)?,
            _ => composition
                .find_conflicts(&mut |_, conflict| print(&conflict, conflict.versions[0].base))?,
        }
        if self.conflicts == ConflictPolicy::Refuse && count > 0 {
            let what = format!(
                "the bases conflict at {}; nothing is published: resolve them in a session on top of \
                 these bases, or choose another --conflicts",
                text::counted(count, "path")
            );
            return Err(Error::new(Kind::Conflict, what));
        }
        Ok(())
    }

    /// Prints a conflict in which the version of the base `shown` wins.
    fn print_conflict(
        &self,
        context: &CommandContext,
        bases: &[SetId],
        conflict: &BaseConflict,
        shown: usize,
    ) -> Result<()> {
        let hidden: Vec<usize> = conflict
            .versions
            .iter()
            .map(|version| version.base)
            .filter(|base| *base != shown)
            .collect();
        let path = conflict.path.as_ref().unwrap_or(&conflict.name);
        if context.out.is_json() {
            let mut object = serde_json::Map::new();
            text::put_bytes(&mut object, "conflict", path);
            object.insert("has_path".into(), conflict.path.is_some().into());
            object.insert("shown".into(), bases[shown].to_string().into());
            let ids: Vec<String> = hidden.iter().map(|base| bases[*base].to_string()).collect();
            object.insert("hidden".into(), ids.into());
            if let Some(DirectoryConflict::Moved { paths, is_in_itself }) = &conflict.directory {
                let path = |path: &Vec<u8>| {
                    let mut object = serde_json::Map::new();
                    text::put_bytes(&mut object, "path", path);
                    object
                };
                object.insert("paths".into(), json!(paths.iter().map(path).collect::<Vec<_>>()));
                object.insert("in_itself".into(), (*is_in_itself).into());
            }
            return context.out.json(object);
        }
        if let Some(DirectoryConflict::Moved { paths, is_in_itself }) = &conflict.directory {
            let bases =
                conflict.versions.iter().map(|version| self.bases[version.base].to_string());
            let bases = bases.collect::<Vec<_>>().join(" and ");
            return context.out.line(moved_directory_text(path, paths, *is_in_itself, &bases));
        }
        let what = |base: usize| {
            let version = conflict.versions.iter().find(|version| version.base == base);
            let is_removed = version.is_some_and(ConflictingVersion::is_removal);
            format!("{}{}", self.bases[base], if is_removed { ", which removed it" } else { "" })
        };
        let others: Vec<String> = hidden.iter().map(|base| what(*base)).collect();
        let verb = if self.conflicts == ConflictPolicy::Refuse { "would show" } else { "shows" };
        let path = text::printable(path);
        context.out.line(format!("{path}: {verb} {}, and not {}", what(shown), others.join(", ")))
    }
}

impl PublishCommand {
    /// Publishes the parts of `job`; prints each name on which they disagree, with the winner.
    fn publish_job(&self, context: &CommandContext, job: JobId, name: &str) -> Result<()> {
        let repository = context.repository()?;
        check_free(&repository, name, NewNameSource::Argument)?;
        let parts = repository.parts(job)?;
        if parts.is_empty() {
            let what = format!("no part of job {job} in the store; see `esker session job --help`");
            return Err(Error::new(Kind::NotFound, what));
        }
        check_parts(job, &parts, self.parts)?;
        let sets: Vec<_> = parts.iter().map(|part| part.set).collect();
        let writer = SessionSettings::for_few().options(context).heartbeat.map(|beat| beat.writer);
        let check = |report: &JobReport| self.check_conflicts(context, report, &parts);
        let report = repository.publish_job_as(writer.as_ref(), &sets, name, check)?;
        if let Some((property, message)) = self.message.property() {
            repository.set_property(report.set, property, message)?;
        }
        if context.out.is_json() {
            let conflicts: Vec<_> = report.conflicts.iter().map(conflict_object).collect();
            return context.out.json(json!({
                "published": name,
                "set": report.set.to_string(),
                "parts": report.parts,
                "merged": report.merged,
                "conflicts": conflicts,
            }));
        }
        announce(context, name, report.set)?;
        let joined = text::counted(parts.len() as u64, "part");
        context.out.line(format!("joined {joined} of the job: {}", ranks_text(&parts)))?;
        context.out.flush()?;
        for conflict in &report.conflicts {
            notice(conflict_text(conflict, &parts));
        }
        Ok(())
    }
}

impl PublishCommand {
    /// Prints the conflicts of a job and fails, if there are any and they are refused.
    fn check_conflicts(
        &self,
        context: &CommandContext,
        report: &JobReport,
        parts: &[JobPart],
    ) -> Result<()> {
        if self.conflicts != ConflictPolicy::Refuse || report.conflicts.is_empty() {
            return Ok(());
        }
        for conflict in &report.conflicts {
            match context.out.is_json() {
                true => context.out.json(conflict_object(conflict))?,
                false => notice(conflict_text(conflict, parts)),
            }
        }
        context.out.flush()?;
        let what = format!(
            "the parts conflict at {}, so nothing was published, and the parts stay: publish them without              `--conflicts refuse` to show what the lines above say, or drop a part by `esker session \
             drop` and write it again",
            text::counted(report.conflicts.len() as u64, "name")
        );
        Err(Error::new(Kind::Conflict, what))
    }
}

/// Returns the line on a directory that `bases` moved.
fn moved_directory_text(path: &[u8], paths: &[Vec<u8>], is_in_itself: bool, bases: &str) -> String {
    let path = text::printable(path);
    let shown = match paths {
        [] => "no path leads to this directory and what is in it".to_owned(),
        [_] => "this directory is within itself".to_owned(),
        paths => {
            let paths: Vec<_> = paths.iter().map(|path| text::printable(path)).collect();
            let also = if is_in_itself { ", and within itself" } else { "" };
            format!("one directory at {}{also}", paths.join(" and "))
        }
    };
    format!("{path}: {shown}; {bases} moved directories to different places")
}

/// Fails unless all parts are complete and, if `expected` is given, there are that many.
fn check_parts(job: JobId, parts: &[JobPart], expected: Option<usize>) -> Result<()> {
    let open: Vec<&JobPart> = parts.iter().filter(|part| !part.is_complete).collect();
    if let [JobPart { set, .. }, ..] = open[..] {
        let (parts, are, wait) = match open.len() {
            1 => ("part", "is", "its writer completes it"),
            _ => ("parts", "are", "their writers complete them"),
        };
        let listed: Vec<String> =
            open.iter().map(|part| format!("{} (@{})", part.rank, part.set)).collect();
        let what = format!(
            "{parts} {} of job {job} {are} not complete: {wait}. If a writer is gone, complete its \
             part by `esker session complete @{set}`, or drop it by `esker session drop @{set}` and \
             write it again",
            listed.join(", ")
        );
        return Err(Error::new(Kind::Invalid, what));
    }
    match expected {
        Some(expected) if expected != parts.len() => {
            let counted = text::counted(parts.len() as u64, "part");
            let what = format!(
                "job {job} has {counted} ({}), not {expected}: nothing was published",
                ranks_text(parts)
            );
            Err(Error::new(Kind::Invalid, what))
        }
        _ => Ok(()),
    }
}

/// The numbers of `parts`, which ascend: `0 to 3, 7`.
fn ranks_text(parts: &[JobPart]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for JobPart { rank, .. } in parts {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*rank) => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    let text = |(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// A conflict, and how it was decided, in one line.
fn conflict_text(conflict: &PartConflict, parts: &[JobPart]) -> String {
    let rank = parts.iter().find(|part| part.set == conflict.winner).map(|part| part.rank);
    let winner = match rank {
        Some(rank) => format!("part {rank} (@{})", conflict.winner),
        None => format!("@{}", conflict.winner),
    };
    let what = disagreement(conflict.kind);
    match &conflict.path {
        // It is at another path.
        Some(path) if conflict.kind == ConflictKind::Moved => {
            format!("{}: parts disagree: {what}; {winner} moved it", text::printable(path))
        }
        Some(path) => {
            let path = text::printable(path);
            format!("{path}: parts disagree: {what}; the change of {winner} is shown")
        }
        None if conflict.dir == DirId::LINKS => format!(
            "a file with several names: parts disagree: {what}; the change of {winner} is shown"
        ),
        None => format!(
            "{}: parts disagree: {what}; it is shown nowhere, since no path leads to it",
            text::printable(&conflict.name)
        ),
    }
}

/// Describes how the changes of the parts contradict each other.
const fn disagreement(kind: ConflictKind) -> &'static str {
    match kind {
        ConflictKind::SameName => "several parts made or replaced it",
        ConflictKind::SameFile => "several parts changed it in different ways",
        ConflictKind::Removed => "one part removed it and another changed it",
        ConflictKind::Moved => "one part moved it and another changed it",
        ConflictKind::MovedTwice => "several parts moved it to different places",
        ConflictKind::SeveralNames => {
            "parts left the file at several names, and here it is a separate file now"
        }
        ConflictKind::Unreachable => "parts moved it to an unreachable place",
    }
}

fn conflict_object(conflict: &PartConflict) -> serde_json::Value {
    let losers: Vec<String> = conflict.losers.iter().map(ToString::to_string).collect();
    let mut object = serde_json::Map::new();
    object.insert("kind".into(), format!("{:?}", conflict.kind).into());
    if let Some(path) = &conflict.path {
        text::put_bytes(&mut object, "path", path);
    }
    text::put_bytes(&mut object, "name", &conflict.name);
    object.insert("winner".into(), conflict.winner.to_string().into());
    object.insert("losers".into(), losers.into());
    object.into()
}
