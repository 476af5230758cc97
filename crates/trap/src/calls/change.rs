// SPDX-License-Identifier: Apache-2.0
//! Change: calls that change attributes: mode, owner, times, size.

use esker_base::Result as EskerResult;
use esker_fs::inode::timestamp;
use esker_fs::inode::{FileKind, Inode};
use esker_fs::ops::AttributeChanges;
use esker_fs::session::Session;
use esker_fs::stack::dir::Dir;
use esker_fs::stack::identity::WRITE;
use rustix::io::Errno;

use super::{Subject, TrappedCall, session};
use crate::listener::CallAnswer;
use crate::resolve::errno;
use crate::spooled_file::FileSource;

/// A time of utimensat(2): seconds and nanoseconds.
type TimeArgument = (i64, i64);

impl TrappedCall<'_> {
    /// chmod and its relatives: to the mode in argument `at`.
    pub(super) fn change_mode(&self, subject: Subject, at: usize) -> Result<CallAnswer, Errno> {
        let mode = Some(self.number(at) & 0o7777);
        self.change(subject, &AttributeChanges { mode, ..AttributeChanges::default() }, false)
    }

    /// chown and its relatives: to the user in argument `at` and the group in the next one.
    pub(super) fn change_owner(&self, subject: Subject, at: usize) -> Result<CallAnswer, Errno> {
        let given = |at: usize| Some(self.number(at)).filter(|&id| id != u32::MAX);
        let (uid, gid) = (given(at), given(at + 1));
        self.change(subject, &AttributeChanges { uid, gid, ..AttributeChanges::default() }, false)
    }

    /// utimensat.
    pub(super) fn change_times(&self) -> Result<CallAnswer, Errno> {
        // Without a path, it changes the times of the descriptor's file.
        let subject = match self.argument(1) {
            0 => self.open_subject(self.int(0))?,
            _ => self.subject_at(self.int(0), 1, self.int(3))?,
        };
        let times = match self.argument(2) {
            0 => [(0, libc::UTIME_NOW); 2],
            address => {
                let bytes: [u8; 32] = self.caller().bytes(address)?;
                [time_at(&bytes, 0), time_at(&bytes, 16)]
            }
        };
        self.set_times(subject, times)
    }

    /// utime.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn change_times_in_seconds(&self) -> Result<CallAnswer, Errno> {
        let times = match self.argument(1) {
            0 => [(0, libc::UTIME_NOW); 2],
            address => {
                let bytes: [u8; 16] = self.caller().bytes(address)?;
                let (accessed, modified) = time_at(&bytes, 0);
                [(accessed, 0), (modified, 0)]
            }
        };
        self.set_times(self.subject(libc::AT_FDCWD, 0, true)?, times)
    }

    /// utimes, futimesat: of the path in argument `at`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn change_times_in_microseconds(
        &self,
        descriptor: i32,
        at: usize,
    ) -> Result<CallAnswer, Errno> {
        let times = match self.argument(at + 1) {
            0 => [(0, libc::UTIME_NOW); 2],
            address => {
                let bytes: [u8; 32] = self.caller().bytes(address)?;
                [time_at(&bytes, 0), time_at(&bytes, 16)].map(|(seconds, parts)| {
                    (seconds, if (0..1_000_000).contains(&parts) { parts * 1000 } else { -1 })
                })
            }
        };
        self.set_times(self.subject(descriptor, at, true)?, times)
    }

    fn set_times(&self, subject: Subject, times: [TimeArgument; 2]) -> Result<CallAnswer, Errno> {
        let view = match &subject {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::Name(located) => located.view.clone(),
            Subject::File(view, _) | Subject::Directory(view, _) => view.clone(),
        };
        let now_ns = session(&view)?.now_ns();
        let time = |(seconds, parts): TimeArgument| match parts {
            libc::UTIME_NOW => Ok(Some(now_ns)),
            libc::UTIME_OMIT => Ok(None),
            0..1_000_000_000 => Ok(Some(timestamp::of_parts(seconds, parts))),
            _ => Err(Errno::INVAL),
        };
        let (atime_ns, mtime_ns) = (time(times[0])?, time(times[1])?);
        let changes = AttributeChanges { atime_ns, mtime_ns, ..AttributeChanges::default() };
        // A user with write permission may set the times of a file to now.
        let is_now = times.iter().all(|time| time.1 == libc::UTIME_NOW);
        self.change(subject, &changes, is_now)
    }

    /// truncate.
    pub(super) fn truncate(&self) -> Result<CallAnswer, Errno> {
        let size = u64::try_from(self.argument(1) as i64).map_err(|_| Errno::INVAL)?;
        let located = match self.subject(libc::AT_FDCWD, 0, true)? {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::Name(located) => located,
            Subject::File(view, file) => {
                let inode = file.stat().map_err(|error| errno(&error))?;
                session(&view)?;
                let namespace = view.namespace();
                let checked = namespace.identity().check(WRITE, &inode, b"file");
                checked.map_err(|error| errno(&error))?;
                self.check_limit(&inode, size)?;
                let changed = file.set_size(namespace, size);
                return changed.map(|()| CallAnswer::Value(0)).map_err(|error| errno(&error));
            }
            Subject::Directory(..) => return Err(Errno::ISDIR),
        };
        let inode = located.inode()?;
        match inode.kind() {
            Some(FileKind::File) => {}
            Some(kind) if kind.is_shown_as_directory() => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        let session = session(&located.view)?;
        let namespace = located.view.namespace();
        let checked = namespace.identity().check(WRITE, inode, &located.name);
        checked.map_err(|error| errno(&error))?;
        self.check_limit(inode, size)?;
        let changes = AttributeChanges { size: Some(size), ..AttributeChanges::default() };
        let spool = self.supervisor.spool();
        let changed = spool.with_file(inode.id, |file| match file {
            Some(file) => file.set_size(namespace, size),
            None => {
                if size > inode.size {
                    spool.check_size(size)?;
                }
                session.setattr(&located.dir, &located.name, &changes).map(drop)
            }
        });
        changed.map(|()| CallAnswer::Value(0)).map_err(|error| errno(&error))
    }

    /// Fails if the caller may not extend the file `inode` to `size`.
    fn check_limit(&self, inode: &Inode, size: u64) -> Result<(), Errno> {
        let is_within = size <= inode.size || size <= self.caller().file_bytes_max();
        if is_within { Ok(()) } else { Err(Errno::FBIG) }
    }

    /// Changes attributes of a subject other than its size. With `needs_write_only`, write
    /// permission is enough.
    fn change(
        &self,
        subject: Subject,
        changes: &AttributeChanges,
        needs_write_only: bool,
    ) -> Result<CallAnswer, Errno> {
        let changed = match subject {
            Subject::Outside => return Ok(CallAnswer::Continue),
            Subject::Name(located) => {
                let inode = located.inode()?;
                let view = self.acting_view(&located.view, inode, needs_write_only)?;
                let place = (!located.name.is_empty()).then_some((&located.dir, &located.name[..]));
                let session = session(&view)?;
                let change = || change_name(session, place, changes);
                self.supervisor.spool().with_file(inode.id, |file| match file {
                    Some(file) => file.change(changes, change),
                    None => change(),
                })
            }
            Subject::File(view, file) => {
                let inode = file.stat().map_err(|error| errno(&error))?;
                let view = self.acting_view(&view, &inode, needs_write_only)?;
                let session = session(&view)?;
                let FileSource::Session(_, open) = file.source() else { return Err(Errno::ROFS) };
                file.change(changes, || session.file(open).setattr(changes).map(drop))
            }
            Subject::Directory(view, dir) => {
                let inode = view.namespace().stat_dir(&dir).map_err(|error| errno(&error))?;
                let view = self.acting_view(&view, &inode, needs_write_only)?;
                let place = dir.location();
                let place = place.as_ref().map(|(parent, name)| (parent, &name[..]));
                change_name(session(&view)?, place, changes)
            }
        };
        changed.map(|()| CallAnswer::Value(0)).map_err(|error| errno(&error))
    }

    /// The view in which a change of `inode` is made: the caller's, or a superuser's if the caller
    /// need not own the file.
    fn acting_view(
        &self,
        view: &esker_fs::session::view::NamespaceView,
        inode: &Inode,
        needs_write_only: bool,
    ) -> Result<esker_fs::session::view::NamespaceView, Errno> {
        let identity = view.namespace().identity();
        if !needs_write_only || identity.check_owner(inode, b"").is_ok() {
            return Ok(view.clone());
        }
        identity.check(WRITE, inode, b"").map_err(|error| errno(&error))?;
        Ok(self.supervisor.identities().superuser().clone())
    }
}

/// Changes attributes of the file at `place`, or of the root if that is `None`.
fn change_name(
    session: &Session,
    place: Option<(&Dir, &[u8])>,
    changes: &AttributeChanges,
) -> EskerResult<()> {
    match place {
        Some((dir, name)) => session.setattr(dir, name, changes).map(drop),
        None => session.setattr_root(changes),
    }
}

/// Two numbers of 64 bits at `at`.
fn time_at(bytes: &[u8], at: usize) -> TimeArgument {
    let number = |at: usize| {
        i64::from_ne_bytes(bytes[at..at + 8].try_into().expect("the caller passes enough bytes"))
    };
    (number(at), number(at + 8))
}
