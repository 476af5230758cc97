// SPDX-License-Identifier: Apache-2.0
//! `esker mount`: shows a snapshot or a session as a directory of the machine.
//!
//! In the background, this program starts again as a child. The child mounts, confirms that on
//! standard output, and continues without a terminal; the parent passes on the confirmation, or the
//! child's error.

mod live;

use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use esker_base::clock::SystemClock;
use esker_base::{Clock, Error, Kind, Result, shell_word};
use esker_fs::repository::Repository;
use esker_fs::retention::marker::MarkerHolder;
use esker_fs::retention::read_lease::{ReadLease, ReaderMarkers};
use esker_fs::session::view::NamespaceView;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_fuse::{
    InPlacePolicy, KNOWN_FILES_MAX, Mount as Mounted, MountEnding, MountOptions, SOURCE, Transport,
    TransportChoice, status_of,
};
use esker_table::manifest::{Manifest, SetId, SetState};
use serde_json::{Value, json};

use super::mount_directory::{detach, make_usable};
use super::mount_log::MountLog;
use crate::change::{MessageArgument, SessionSettings, TakeOver, resume};
use crate::context::CommandContext;
use crate::location::StackArgument;
use crate::mount_overlap;
use crate::output::notice;
use crate::session_outcome::{OutcomeArguments, SessionOutcome, open_part};
use crate::usage;

/// The change set property that holds the name under which its mount will publish it.
const PROPERTY: &str = "mount";
/// Set for the background child.
const READY: &str = "ESKER_MOUNT_READY";

/// New files that the kernel writes directly in the store.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum InPlaceChoice {
    /// Those in directories whose last new file became large (4 MiB)
    #[default]
    Auto,
    /// All
    Always,
    /// None
    Never,
}

impl From<InPlaceChoice> for InPlacePolicy {
    fn from(passed: InPlaceChoice) -> Self {
        match passed {
            InPlaceChoice::Auto => Self::Auto,
            InPlaceChoice::Always => Self::Always,
            InPlaceChoice::Never => Self::Never,
        }
    }
}

/// How requests of the kernel reach the mount.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum RequestTransport {
    /// By rings where they can be had, else by threads; the log says which, and why
    Auto,
    /// By FUSE over io_uring, or not at all
    Uring,
    /// By threads that read /dev/fuse
    #[default]
    Threads,
}

impl From<RequestTransport> for Transport {
    fn from(transport: RequestTransport) -> Self {
        match transport {
            RequestTransport::Auto => Self::Auto,
            RequestTransport::Uring => Self::Uring,
            RequestTransport::Threads => Self::Threads,
        }
    }
}

/// Show a snapshot, or a session to write in, as a directory
///
/// Without --write, shows the snapshot NAME, which nothing can change. With --write, begins a
/// session on top of the bases, in which any program reads and writes files; when the mount ends,
/// the result is published as NEWNAME, as one more snapshot. A mount ends by `esker umount`, which
/// also reports whether publishing succeeded, by `fusermount3 -u` or `umount`, and by SIGTERM or
/// SIGINT. `esker commit` publishes the current state and keeps the mount.
///
/// With live:NAME, shows the live namespace NAME, which other mounts and clients change at the same
/// time, on any number of machines (`esker live`). The mount acts for the user who runs it.
///
/// With --job, the session is one part of a job instead, which the end of the mount completes; `esker
/// publish --job` joins all parts.
///
/// Data in files that a program has closed survives the death of the mount, except for up to the
/// last tenth of a second, and in files that it keeps open usually except for the last five seconds;
/// data that it has synced with fsync survives power loss. The session of a mount that died is still
/// open: --resume continues it.
///
/// Needs /dev/fuse and, unless you are root, the `fuse3` package.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker mount headers /mnt                            look at a snapshot
  esker mount --write build-1 --base headers /mnt     change it; publish as build-1 at the end
  make -C /mnt && esker commit /mnt build-1-compiled  publish in between
  esker umount /mnt                                   publish as build-1 and end
  esker mount --write build-1 --resume /mnt           go on after a crash
  esker mount --job $job --rank $SLURM_NODEID /mnt    write the part of one node of a job
  esker mount live:run /mnt                           share a live namespace with other machines")]
pub struct MountCommand {
    /// The snapshot, or live:NAME, unless --write or --job is given; then the mount point
    #[arg(required = true, num_args = 1..=2, value_names = ["NAME", "MOUNTPOINT"])]
    what: Vec<String>,
    #[command(flatten)]
    outcome: OutcomeArguments,
    /// Build on this snapshot; of several, earlier ones win
    #[arg(long = "base", value_name = "NAME", value_parser = StackArgument::parser(), requires = "changes")]
    bases: Vec<StackArgument>,
    /// Continue the session of a mount that died
    #[arg(long, requires = "changes", conflicts_with_all = ["bases", "message"])]
    resume: bool,
    #[command(flatten)]
    message: MessageArgument,
    /// Let other users access the mount; always so for root, otherwise /etc/fuse.conf must allow it
    #[arg(long)]
    allow_other: bool,
    /// Let the kernel collect small writes and pass them on together: faster for programs that
    /// write a few bytes or random pages at a time, slower for many small files
    #[arg(long)]
    write_back: bool,
    /// New files that the kernel writes directly in the store, at the store's speed, where
    /// possible: in a store that is a directory, for root, from Linux 6.9 on, without --write-back
    /// and --durability always
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = InPlaceChoice::Auto)]
    in_place: InPlaceChoice,
    /// How requests of the kernel reach the mount: rings save wake-ups of other processors, but need
    /// Linux 6.14 and `echo Y > /sys/module/fuse/parameters/enable_uring` by root
    #[arg(long, value_name = "HOW", value_enum, default_value_t = RequestTransport::Threads)]
    transport: RequestTransport,
    /// Time after which names and attributes of a live namespace are read again from its server; 0
    /// for every time
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = live::refresh_seconds)]
    refresh: f64,
    /// Threads that serve the kernel's requests; with rings, those that serve slow requests, beside
    /// one thread for each processor
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: usize,
    /// Count the kernel's requests by kind: the end of the mount and `esker mounts --statistics` show
    /// them
    #[arg(long)]
    statistics: bool,
    /// Stay in the foreground, and report errors there
    #[arg(long)]
    foreground: bool,
    /// Append errors in the background to FILE, instead of to a file that `esker mounts` names
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    log: Option<PathBuf>,
    #[command(flatten)]
    settings: SessionSettings,
    #[command(flatten)]
    take_over: TakeOver,
}

/// The contents of a mount, and the plan for its end.
struct MountSubject {
    view: NamespaceView,
    name: String,
    session: Option<(Arc<Session>, SessionOutcome)>,
    /// Keeps the mounted snapshot, or the session's bases, from being collected.
    _lease: Option<ReadLease>,
}

impl MountCommand {
    /// Mounts, and serves the mount here or in the background.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let changes = self.outcome.outcome()?;
        let mountpoint = self.mountpoint(changes.is_some());
        let is_background = std::env::var_os(READY).is_some();
        if !self.foreground && !is_background {
            return in_background(context);
        }
        // Report an unwritable log while somebody listens.
        let given =
            self.log.as_deref().filter(|_| is_background).map(MountLog::open).transpose()?;
        make_usable(&mountpoint)?;
        mount_overlap::check_mountpoint(context.store_url(), &mountpoint)?;
        let has_predecessor = self.has_predecessor(&mountpoint, changes.as_ref())?;
        let attend = |transport: Option<String>| -> Result<Option<MountLog>> {
            let mut log = match (is_background, given) {
                (true, None) => Some(MountLog::choose()?),
                (_, given) => given,
            };
            match (transport, &mut log) {
                (Some(text), Some(log)) => log.open_with(&text)?,
                (Some(text), None) => notice(text),
                (None, _) => {}
            }
            log.as_ref().map_or(Ok(()), MountLog::leave_terminal)?;
            Ok(log)
        };
        let (ending, finished, log) = match self.live_name() {
            Some(name) => {
                let mounted = self.mount_live(context, name, &mountpoint)?;
                announce(context, &mountpoint, (&self.what[0], None))?;
                let log = attend(None)?;
                let ending = mounted.run()?;
                let finished = closed(&ending).map(|()| json!({}));
                (ending, finished, log)
            }
            None => {
                let subject = self.subject(context, changes, &mountpoint)?;
                if has_predecessor {
                    detach(&mountpoint)?;
                }
                let options = self.options(context, &subject);
                let mounted = Mounted::new(subject.view.clone(), &mountpoint, options)
                    .inspect_err(|_| subject.give_up(context, self.resume))?;
                subject.announce(context, &mountpoint)?;
                let log = attend(transport_text(mounted.transport()))?;
                let ending = mounted.run()?;
                let finished = closed(&ending).and_then(|()| subject.finish());
                if !is_background && let (Ok(report), Some(_)) = (&finished, &subject.session) {
                    SessionOutcome::announce(context, report)?;
                }
                (ending, finished, log)
            }
        };
        let mut told = finished.as_ref().map(Clone::clone);
        if let Some(requests) = &ending.requests {
            notice(request_text(requests));
            if let Ok(told) = &mut told {
                told["requests"] = requests.clone();
            }
        }
        let told = told.map_err(|error| Error::new(error.kind(), error.to_string()));
        ending.report(&told);
        finished?;
        if let Some(log) = log {
            log.discard_if_unused();
        }
        Ok(())
    }

    /// True if the mount at `mountpoint` is to be taken over by this one.
    ///
    /// # Errors
    /// `Conflict` for any other Esker mount, which this one would cover.
    fn has_predecessor(&self, mountpoint: &Path, changes: Option<&SessionOutcome>) -> Result<bool> {
        // If its process died, `make_usable` has removed it.
        let Ok(status) = status_of(mountpoint) else { return Ok(false) };
        let is_same = changes.is_some_and(|outcome| outcome.to_string() == status.name)
            && status.set.is_some();
        if is_same && self.resume && self.take_over.is_given() {
            return Ok(true);
        }
        let word = shell_word(mountpoint.as_os_str().as_bytes());
        let what = format!(
            "{}: process {} shows {} there: end that mount by `esker umount {word}`, or mount at \
             another directory",
            mountpoint.display(),
            status.pid,
            status.name
        );
        Err(Error::new(Kind::Conflict, what))
    }

    fn mountpoint(&self, accepts_changes: bool) -> PathBuf {
        match (accepts_changes, self.what.as_slice()) {
            (true, [mountpoint]) | (false, [_, mountpoint]) => mountpoint.into(),
            (true, _) => usage::exit(
                "with --write or --job give only the directory; name the bases with --base",
            ),
            (false, _) => usage::exit(
                "mount what, and where? Give a name and a directory: `esker mount --help` has examples",
            ),
        }
    }

    /// Opens the contents of the mount. The kernel checks permissions for each caller, so the
    /// session itself acts as the superuser.
    fn subject(
        &self,
        context: &CommandContext,
        changes: Option<SessionOutcome>,
        mountpoint: &Path,
    ) -> Result<MountSubject> {
        let repository = context.repository()?;
        let Some(outcome) = changes else {
            if self.message.message.is_some() {
                usage::exit("without --write or --job nothing is kept: leave out --message");
            }
            let stack = self.snapshot(mountpoint);
            let set = context.set_of(&repository, &stack)?;
            let (namespace, markers) = repository.open_held(&[set], Identity::root())?;
            return Ok(MountSubject {
                view: NamespaceView::Snapshot(namespace),
                name: stack.to_string(),
                session: None,
                _lease: lease(markers)?,
            });
        };
        outcome.check(&repository)?;
        let mut options = self.settings.options_to_resume(context, self.take_over);
        if let Some(heartbeat) = &mut options.heartbeat {
            heartbeat.on_fenced = Some(report_fenced);
        }
        options.new_root.owner = Some((options.identity.uid, options.identity.gid));
        options.identity = Identity::root();
        options.properties.insert(PROPERTY.to_owned(), outcome.to_string());
        options.properties.extend(self.message.property());
        let (session, markers) =
            self.session(context, &repository, (&outcome, mountpoint), options)?;
        let session = Arc::new(session);
        Ok(MountSubject {
            view: NamespaceView::Session(session.clone()),
            name: outcome.to_string(),
            session: Some((session, outcome)),
            _lease: lease(markers)?,
        })
    }

    /// The snapshot to mount. A path in one is a usage error, which ends the process.
    fn snapshot(&self, mountpoint: &Path) -> StackArgument {
        let text = &self.what[0];
        if let Some((name, path)) = text.split_once(':') {
            let path = mountpoint.join(path.trim_start_matches('/'));
            usage::exit(format!(
                "a mount shows a whole snapshot: `esker mount {} {}`, then look at {}",
                shell_word(name.as_bytes()),
                shell_word(mountpoint.as_os_str().as_bytes()),
                path.display()
            ))
        }
        usage::stack(text)
    }

    /// The session, and markers on its bases, which are placed before the bases are read.
    fn session(
        &self,
        context: &CommandContext,
        repository: &Repository,
        (outcome, mountpoint): (&SessionOutcome, &Path),
        options: SessionOptions,
    ) -> Result<(Session, Option<ReaderMarkers>)> {
        let left = match (outcome, self.resume) {
            (SessionOutcome::Snapshot(name), _) => {
                self.session_left(repository, name, mountpoint)?
            }
            (SessionOutcome::Part { job, rank }, true) => Some(open_part(repository, *job, *rank)?),
            // Beginning a part again is refused, with the session that it has.
            (SessionOutcome::Part { .. }, false) => None,
        };
        let bases = match left {
            Some(set) => Manifest::load(&**repository.store(), set)?.bases,
            None => context.sets_of(repository, &self.bases)?,
        };
        let markers = repository.hold_for_reading(&bases)?;
        let session = match left {
            Some(set) => resume(repository, set, options)?,
            None => outcome.begin(repository, &bases, options)?,
        };
        Ok((session, markers))
    }

    /// The session to resume: the one that an earlier mount for `name` has left. Without --resume there
    /// must be none.
    fn session_left(
        &self,
        repository: &Repository,
        name: &str,
        mountpoint: &Path,
    ) -> Result<Option<SetId>> {
        match (self.resume, &left_by_mounts(repository, name)?[..]) {
            (false, []) => Ok(None),
            (true, [set]) => Ok(Some(*set)),
            (false, [set, ..]) => Err(Error::new(
                Kind::Conflict,
                format!(
                    "@{set} is the session of a mount for {name} that runs or died: continue it \
                     with `esker mount --write {name} --resume {}`, or drop it with `esker session \
                     drop @{set}`",
                    shell_word(mountpoint.as_os_str().as_bytes())
                ),
            )),
            (true, []) => Err(Error::new(
                Kind::NotFound,
                format!("no interrupted mount for {name}; start without --resume"),
            )),
            (true, [one, two, ..]) => Err(Error::new(
                Kind::Conflict,
                format!(
                    "@{one} and @{two} are both sessions of mounts for {name}: drop one, as with \
                     `esker session drop @{two}`"
                ),
            )),
        }
    }

    fn options(&self, context: &CommandContext, subject: &MountSubject) -> MountOptions {
        let is_root = rustix::process::geteuid().is_root();
        MountOptions {
            source: format!("{SOURCE}{}", subject.name),
            name: subject.name.clone(),
            transport: self.transport.into(),
            threads: self.threads,
            writes_back: self.write_back,
            in_place: self.in_place.into(),
            allows_others: self.allow_other || is_root,
            known_files_max: KNOWN_FILES_MAX,
            counts_requests: self.statistics,
            store: store_directory(context),
            clock: Arc::new(SystemClock),
            report: Box::new(report),
        }
    }
}

/// The directory of the store, if it is one.
fn store_directory(context: &CommandContext) -> Option<PathBuf> {
    let store = context.store_url();
    let path = PathBuf::from(store.strip_prefix("file://").unwrap_or(store));
    path.is_dir().then_some(path)
}

/// The number of requests by kind, in one line.
pub(crate) fn request_text(requests: &Value) -> String {
    let counts = requests.as_object().into_iter().flatten();
    let counts: Vec<String> = counts.map(|(kind, count)| format!("{kind} {count}")).collect();
    if counts.is_empty() {
        "no requests".into()
    } else {
        format!("requests: {}", counts.join(", "))
    }
}

/// The line of the log about the transport, if it was to be chosen.
fn transport_text(choice: &TransportChoice) -> Option<String> {
    match choice {
        TransportChoice::Uring(1) => Some("requests come by a ring".into()),
        TransportChoice::Uring(count) => {
            Some(format!("requests come by rings that {count} threads serve"))
        }
        TransportChoice::Threads(None) => None,
        TransportChoice::Threads(Some(reason)) => {
            Some(format!("requests come by threads, not by rings: {reason}"))
        }
    }
}

/// Renews `markers` for the lifetime of the lease.
fn lease(markers: Option<ReaderMarkers>) -> Result<Option<ReadLease>> {
    let failed = |error| report(&Error::within(error, "could not keep the mounted snapshot"));
    markers.map(|markers| ReadLease::keep(markers, failed)).transpose()
}

/// Fails if files of an ended mount could not be closed.
fn closed(ending: &MountEnding) -> Result<()> {
    match &ending.closed {
        Ok(()) => Ok(()),
        Err(error) => Err(Error::new(error.kind(), error.context())),
    }
}

/// Says that `name`, or the session `set` for it, is mounted.
fn announce(
    context: &CommandContext,
    mountpoint: &Path,
    (name, set): (&str, Option<String>),
) -> Result<()> {
    if context.out.is_json() {
        let pid = std::process::id();
        let mountpoint = mountpoint.to_string_lossy();
        let shown = json!({"mountpoint": mountpoint, "name": name, "set": set, "pid": pid});
        context.out.json(shown)?;
    } else {
        let at = mountpoint.display();
        context.out.line(match set {
            Some(set) => format!("session @{set} is at {at}; it will be {name}"),
            None => format!("{name} is at {at}"),
        })?;
    }
    context.out.flush()
}

impl MountSubject {
    fn announce(&self, context: &CommandContext, mountpoint: &Path) -> Result<()> {
        let set = self.session.as_ref().map(|(session, _)| session.set().to_string());
        announce(context, mountpoint, (&self.name, set))
    }

    /// Publishes or completes the session, if there is one.
    fn finish(&self) -> Result<Value> {
        match &self.session {
            Some((session, outcome)) => outcome.reach(session),
            None => Ok(json!({})),
        }
    }

    /// Abandons the session that was begun for a mount that failed.
    fn give_up(&self, context: &CommandContext, was_open: bool) {
        if let (Some((session, _)), false) = (&self.session, was_open)
            && let Ok(repository) = context.repository()
            && let Err(error) = repository.abandon_session(session)
        {
            notice(format!("could not drop session @{}: {error}", session.set()));
        }
    }
}

/// Open sessions of mounts for `name`.
fn left_by_mounts(repository: &Repository, name: &str) -> Result<Vec<SetId>> {
    let of_mount = |node: &esker_fs::maintenance::graph::GraphNode| {
        node.holders.iter().any(MarkerHolder::is_session)
            && node.manifest.as_ref().is_ok_and(|manifest| {
                manifest.state == SetState::Open
                    && manifest.properties.get(PROPERTY).is_some_and(|of| of == name)
            })
    };
    Ok(repository
        .graph_of_all()?
        .iter()
        .filter(|node| of_mount(node))
        .map(|node| node.set)
        .collect())
}

/// Reports that another process has taken over the mount's session.
fn report_fenced(error: &Error) {
    notice(format!(
        "{error}; every change in this mount fails from now on (ESTALE), and what was not synced \
         before is lost: unmount it"
    ));
}

/// Reports an error, at most once a second: an unreachable store fails again and again.
fn report(error: &Error) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static LAST_NS: AtomicU64 = AtomicU64::new(0);
    let now_ns = SystemClock.monotonic_ns();
    let last_ns = LAST_NS.load(Ordering::Relaxed);
    let is_due = last_ns == 0 || now_ns.saturating_sub(last_ns) > 1_000_000_000;
    if is_due
        && LAST_NS.compare_exchange(last_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        notice(error.to_string());
    }
}

/// Restarts this program in the background, and waits until it has mounted or failed.
fn in_background(context: &CommandContext) -> Result<()> {
    let program = std::env::current_exe().map_err(|error| Error::io(error, "find esker"))?;
    let mut child = std::process::Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(READY, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| Error::io(error, "start esker in the background"))?;
    let said = child.stdout.take().expect("it was piped");
    let mut line = String::new();
    let read = BufReader::new(said).read_line(&mut line);
    read.map_err(|error| Error::io(error, "wait for the mount"))?;
    if line.is_empty() {
        let status = child.wait().map_err(|error| Error::io(error, "wait for the mount"))?;
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        // The child has printed the reason.
        std::process::exit(i32::from(code));
    }
    context.out.raw(line.as_bytes())
}
