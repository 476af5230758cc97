// SPDX-License-Identifier: Apache-2.0
//! Context: the state that every command gets: the store, the user, and the output.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use clap::error::ErrorKind;
use esker_base::clock::SystemClock;
use esker_base::store::identity::StoreIdentity;
use esker_base::store::{SharedStore, concurrent, url};
use esker_base::{Clock, Error, Kind, Result};
use esker_comm::Rank;
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::repository::Repository;
use esker_fs::retention::read_lease::ReadLease;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::Namespace;
use esker_table::manifest::SetId;
use esker_table::object_name::SETS_FOLDER;

use crate::interrupt::guarded;
use crate::location::{StackArgument, StackPath};
use crate::mount_overlap;
use crate::output::{StandardOutput, notice};

/// Number and interval of checks for the store that another process creates.
const STORE_LOOKS: u32 = 600;
const STORE_LOOK: Duration = Duration::from_millis(50);

/// State that every command gets.
pub struct CommandContext {
    /// Standard output.
    pub out: StandardOutput,
    /// Permission bits that new files do not get.
    pub umask: u32,
    /// The program's arguments, for errors of usage.
    arguments: fn() -> clap::Command,
    store: Option<String>,
    /// The limit on open files with which the program was started; `None` if there was none.
    pub open_files_before: Option<u64>,
    /// Leases that keep what the command reads from being collected, if that takes long.
    leases: RefCell<Vec<ReadLease>>,
    /// The set of each name, as of its first look-up.
    resolved: RefCell<HashMap<String, SetId>>,
    /// The namespaces that the command has opened.
    views: RefCell<Vec<(StackArgument, Rc<Namespace>)>>,
}

impl CommandContext {
    /// The context of this process, whose program has these `arguments`, with `store` from the command
    /// line or the environment.
    pub fn new(arguments: fn() -> clap::Command, store: Option<String>, is_json: bool) -> Self {
        // Only setting the mask reveals it; no other thread runs yet.
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        Self {
            out: StandardOutput::new(is_json),
            umask: umask.as_raw_mode(),
            arguments,
            store,
            open_files_before: None,
            leases: RefCell::default(),
            resolved: RefCell::default(),
            views: RefCell::default(),
        }
    }

    /// The context of a program that was started with this limit on open files.
    pub fn with_open_files_before(self, open_files_before: Option<u64>) -> Self {
        Self { open_files_before, ..self }
    }

    /// The URL of the store. Its absence is a usage error, which ends the process.
    pub fn store_url(&self) -> &str {
        match self.store.as_ref().filter(|url| !url.is_empty()) {
            Some(url) => url,
            None => (self.arguments)()
                .error(
                    ErrorKind::MissingRequiredArgument,
                    "which store? Give --store URL or set ESKER_STORE.\n\n  \
                     A new one:  esker init --store DIR\n  \
                     From then:  export ESKER_STORE=DIR",
                )
                .exit(),
        }
    }

    /// The URL of the store, if one was given.
    pub fn given_store(&self) -> Option<&str> {
        self.store.as_deref().filter(|url| !url.is_empty())
    }

    /// Opens the store.
    pub fn store(&self) -> Result<SharedStore> {
        self.store_while(|_| Ok(())).map(|(store, ())| store)
    }

    /// Opens the store. On a far store, `read` runs while the store's identity is checked; its
    /// outcome counts only if the check succeeds.
    pub fn store_while<T: Send>(
        &self,
        read: impl FnOnce(&SharedStore) -> Result<T> + Send,
    ) -> Result<(SharedStore, T)> {
        let store = guarded(url::connect(self.store_url())?);
        let look = || StoreIdentity::read(&*store);
        let (_, read) = concurrent::try_join(&*store, look, || read(&store))?;
        Ok((store, read))
    }

    /// Opens the store; creates it if there is none.
    pub fn store_or_new(&self) -> Result<SharedStore> {
        match self.store() {
            Err(error) if error.kind() == Kind::NotFound => {
                mount_overlap::check_new_store(self.store_url())?;
                match url::init(self.store_url()) {
                    // Another process has made it meanwhile.
                    Err(error) if error.kind() == Kind::Exists => self.store(),
                    made => made.map(guarded),
                }
            }
            store => store,
        }
    }

    /// Opens the store as process `rank` of a job: the first rank creates it if there is none, and
    /// the others wait for that.
    pub fn store_of_rank(&self, rank: Rank) -> Result<SharedStore> {
        if rank == Rank(0) {
            return self.store_or_new();
        }
        for _ in 0..STORE_LOOKS {
            match self.store() {
                Err(error) if error.kind() == Kind::NotFound => std::thread::sleep(STORE_LOOK),
                store => return store,
            }
        }
        self.store()
    }

    /// Opens the store as a repository.
    pub fn repository(&self) -> Result<Repository> {
        self.store().map(Repository::new)
    }

    /// The user on whose behalf the command acts.
    pub fn identity(&self) -> Identity {
        Identity::of_process()
    }

    /// Nanoseconds since the Unix epoch.
    pub fn now_ns(&self) -> u64 {
        SystemClock.now_ns()
    }

    /// Runs `work` and measures its duration in seconds.
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> (T, f64) {
        let start_ns = SystemClock.monotonic_ns();
        let done = work();
        (done, (SystemClock.monotonic_ns() - start_ns) as f64 / 1e9)
    }

    /// Keeps `set` from being collected while this command reads it, if that takes long.
    fn keep(&self, repository: &Repository, set: SetId) -> Result<()> {
        let report =
            move |error| notice(format!("could not keep @{set} while it is read: {error}"));
        let lease = ReadLease::after_delay(repository.clone(), vec![set], report)?;
        self.leases.borrow_mut().push(lease);
        Ok(())
    }

    /// The set that `name` stands for. A command looks up each name once, so all its locations with
    /// one name are in one snapshot, whatever others publish meanwhile.
    pub fn resolve(&self, repository: &Repository, name: &str) -> Result<SetId> {
        if let Some(set) = self.resolved.borrow().get(name) {
            return Ok(*set);
        }
        let resolved = repository.resolve(name).map_err(|error| {
            let is_live = error.kind() == Kind::NotFound
                && LiveNamespace::load(&**repository.store(), name).is_ok();
            if !is_live {
                return error;
            }
            let what = format!(
                "{name} is a live namespace, and no snapshot: `esker live ls {name}:/` lists it, \
                 `esker mount live:{name} DIR` shows it, and `esker live snapshot {name} NAME` \
                 publishes its state"
            );
            Error::new(Kind::NotFound, what)
        });
        let set = resolved?.set;
        self.resolved.borrow_mut().insert(name.to_owned(), set);
        Ok(set)
    }

    /// The change set that `stack` refers to.
    pub fn set_of(&self, repository: &Repository, stack: &StackArgument) -> Result<SetId> {
        match stack {
            StackArgument::Name(name) => self.resolve(repository, name),
            StackArgument::Set(digits) => set_of_digits(repository, digits),
        }
    }

    /// The change sets of `bases`, in order.
    pub fn sets_of(&self, repository: &Repository, bases: &[StackArgument]) -> Result<Vec<SetId>> {
        bases.iter().map(|base| self.set_of(repository, base)).collect()
    }

    /// Opens the stacks of all `locations`, before the command prints anything of the first.
    pub fn views<'a>(
        &self,
        repository: &Repository,
        locations: &'a [StackPath],
    ) -> Result<Vec<(&'a StackPath, Rc<Namespace>)>> {
        let view =
            |location: &'a StackPath| Ok((location, self.view(repository, &location.stack)?));
        locations.iter().map(view).collect()
    }

    /// The namespace of `stack`, opened once per command; for an unpublished change set, its state
    /// at the last flush.
    pub fn view(&self, repository: &Repository, stack: &StackArgument) -> Result<Rc<Namespace>> {
        if let Some((_, view)) = self.views.borrow().iter().find(|(opened, _)| opened == stack) {
            return Ok(view.clone());
        }
        let view = Rc::new(self.open(repository, stack)?);
        self.views.borrow_mut().push((stack.clone(), view.clone()));
        Ok(view)
    }

    fn open(&self, repository: &Repository, stack: &StackArgument) -> Result<Namespace> {
        let set = self.set_of(repository, stack)?;
        if let StackArgument::Name(_) = stack {
            let namespace = repository.open(&[set], self.identity())?;
            self.keep(repository, set)?;
            return Ok(namespace);
        }
        let namespace = repository.open_unsealed(set, self.identity())?;
        self.keep(repository, set)?;
        let bytes = repository.unflushed_bytes(set)?;
        if bytes > 0 {
            notice(format!(
                "@{set}: {bytes} bytes of its log are not shown; they appear once its writer \
                 flushes or, if the writer died, after `esker compact @{set}`"
            ));
        }
        Ok(namespace)
    }

    /// The bases and the name of something new at `stack`: published under that name with no base,
    /// or as `new_name` on top of it.
    pub fn bases_and_name<'a>(
        &self,
        repository: &Repository,
        stack: &'a StackArgument,
        new_name: Option<&'a str>,
    ) -> Result<(Vec<SetId>, &'a str)> {
        let StackArgument::Name(name) = stack else {
            let what = "an open session: publish it first, then use --as with its name";
            return Err(Error::new(Kind::Invalid, what));
        };
        match new_name {
            Some(new_name) => Ok((vec![self.resolve(repository, name)?], new_name)),
            None => Ok((Vec::new(), name)),
        }
    }
}

/// The change set whose id begins with `digits`.
fn set_of_digits(repository: &Repository, digits: &str) -> Result<SetId> {
    if let Ok(set) = digits.parse() {
        return Ok(set);
    }
    let names = repository.store().list_names(SETS_FOLDER)?;
    let mut fitting = names.iter().filter(|name| name.starts_with(digits));
    match (fitting.next(), fitting.next()) {
        (Some(name), None) => name.parse(),
        (None, _) => {
            let context =
                format!("no change set @{digits}; see `esker session list` and `esker log`");
            Err(Error::new(Kind::NotFound, context))
        }
        (Some(_), Some(_)) => {
            let context = format!("several change sets begin with @{digits}; give more digits");
            Err(Error::new(Kind::Invalid, context))
        }
    }
}
