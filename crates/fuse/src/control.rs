// SPDX-License-Identifier: Apache-2.0
//! Control: communication between commands and a running mount.
//!
//! The root of a mount has an unlisted extended attribute, [`STATUS`], which names the process that
//! serves the mount and its socket. A request is one line of JSON, and so is its answer. Only the
//! user who runs the mount and the superuser may send requests.

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_base::mounts::MountedFileSystem;
use esker_base::{Error, Kind, Random, Result, shell_word};
use serde_json::{Value, json};

/// The attribute of a mount's root that identifies its server.
pub const STATUS: &str = "user.esker.mount";
/// Prefix of every mount's source, as `mount` shows it; the name follows.
pub const SOURCE: &str = "esker:";
/// Prefix of the name of a mounted live namespace.
pub const LIVE: &str = "live:";
/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Time that a client has to send its request.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request from a command to a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// Publish the current state under this name, and keep the mount.
    Commit(String),
    /// Merge the tables of its session, free overwritten data, and keep the mount.
    Compact,
    /// Find out whether another process has taken over its session.
    CheckWriter,
    /// Report the number of requests by kind.
    Statistics,
    /// Unmount, publish the session if there is one, and end.
    End,
}

/// Identity of a mount's server.
#[derive(Clone, Debug)]
pub struct MountStatus {
    /// Process number.
    pub pid: u32,
    /// The change set that it writes, if any.
    pub set: Option<String>,
    /// The name of the mounted snapshot, or the name for the session.
    pub name: String,
    socket: String,
}

/// Reads the status of the mount at `mountpoint`.
///
/// # Errors
/// `Invalid` if it is not an Esker mount; `Closed` if it was one whose process died.
pub fn status_of(mountpoint: &Path) -> Result<MountStatus> {
    let shown = mountpoint.display();
    let none = || Error::new(Kind::Invalid, format!("{shown}: not a mount of esker"));
    let mut bytes = vec![0; 64 << 10];
    let count =
        rustix::fs::getxattr(mountpoint, STATUS, &mut bytes).map_err(|errno| match errno {
            // Aborted, or of a mount by rings canceled: it died this moment.
            rustix::io::Errno::NOTCONN
            | rustix::io::Errno::CONNABORTED
            | rustix::io::Errno::CANCELED => dead_mount(mountpoint),
            rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP => none(),
            _ => Error::io(errno.into(), format!("ask for the status of a mount at {shown}")),
        })?;
    let status: Value =
        serde_json::from_slice(&bytes[..count]).map_err(|error| none().with_source(error))?;
    let text = |field: &str| status[field].as_str().map(str::to_owned);
    let pid = status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    match (pid, text("name"), text("socket")) {
        (Some(pid), Some(name), Some(socket)) => {
            Ok(MountStatus { pid, set: text("set"), name, socket })
        }
        _ => Err(none()),
    }
}

/// Returns the error for a mount at `mountpoint` whose process died.
fn dead_mount(mountpoint: &Path) -> Error {
    // Its own attributes cannot be read any more, those of the directory above can.
    let parent = mountpoint.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok();
    let at = parent.zip(mountpoint.file_name()).map(|(parent, name)| parent.join(name));
    let mounts = mounts().unwrap_or_default();
    let name = mounts.into_iter().find(|mount| Some(&mount.mountpoint) == at.as_ref());
    let name = name.map_or("NAME".into(), |mount| mount.name);
    let what = format!(
        "{}: the process of this mount died: {}",
        mountpoint.display(),
        dead_mount_advice(mountpoint, &name)
    );
    Error::new(Kind::Closed, what)
}

/// Returns what the owner of a mount of `name` at `mountpoint` can do after its process died.
#[must_use]
pub fn dead_mount_advice(mountpoint: &Path, name: &str) -> String {
    let word = shell_word(mountpoint.as_os_str().as_bytes());
    if name.starts_with(LIVE) {
        let name = shell_word(name.as_bytes());
        return format!(
            "`fusermount3 -u {word}` removes what is left of it; `esker mount {name} {word}` mounts \
             it again"
        );
    }
    let part = name.strip_prefix("part ").and_then(|rest| rest.split_once(" of job "));
    let option = match part {
        Some((rank, job)) => format!("--job {job} --rank {rank}"),
        None => format!("--write {name}"),
    };
    format!(
        "`fusermount3 -u {word}` removes what is left of it; if it was mounted with --write or --job, \
         `esker mount {option} --resume {word}` does, and goes on with its session"
    )
}

/// The mount point on this machine, as visible to this process, of the mount that writes the change
/// set `set`, if there is one and this user may send it requests.
#[must_use]
pub fn mountpoint_of(set: &str) -> Option<PathBuf> {
    let is_of_set = |mountpoint: &PathBuf| {
        status_of(mountpoint).is_ok_and(|status| status.set.as_deref() == Some(set))
    };
    mountpoints().ok()?.into_iter().find(is_of_set)
}

/// Mount points of all Esker mounts, of any user, that are visible to this process.
///
/// # Errors
/// Those of reading the kernel's list.
pub fn mountpoints() -> Result<Vec<PathBuf>> {
    Ok(mounts()?.into_iter().map(|mount| mount.mountpoint).collect())
}

/// An Esker mount in the kernel's list of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMount {
    /// Its directory.
    pub mountpoint: PathBuf,
    /// The name that it shows or will be published as.
    pub name: String,
    /// The user that mounted it, if the list says so.
    pub uid: Option<u32>,
}

/// Lists all Esker mounts, of any user, that are visible to this process.
///
/// # Errors
/// Those of reading the kernel's list.
pub fn mounts() -> Result<Vec<ListedMount>> {
    let all = MountedFileSystem::all()
        .map_err(|error| Error::io(error, "list the file systems that are mounted"))?;
    Ok(all.into_iter().filter_map(mount_of_esker).collect())
}

fn mount_of_esker(mount: MountedFileSystem) -> Option<ListedMount> {
    let source = mount.source.as_bytes();
    let name = source.strip_prefix(SOURCE.as_bytes()).filter(|_| mount.kind.starts_with("fuse"))?;
    let name = String::from_utf8_lossy(name).into_owned();
    let uid = mount.options.split(',').find_map(|option| option.strip_prefix("user_id="));
    let uid = uid.and_then(|uid| uid.parse().ok());
    Some(ListedMount { mountpoint: mount.mountpoint, name, uid })
}

/// Sends a request to the mount at `mountpoint` and waits for the answer; returns its fields.
///
/// # Errors
/// As [`status_of`]; the error that the mount answers; `Closed` if it ended without an answer.
pub fn ask(mountpoint: &Path, request: &ControlRequest) -> Result<Value> {
    let status = status_of(mountpoint)?;
    let gone = |error: std::io::Error| {
        let context = format!("{}: the mount ended", mountpoint.display());
        Error::new(Kind::Closed, context).with_source(error)
    };
    let address = SocketAddr::from_abstract_name(&status.socket).map_err(gone)?;
    let mut stream = UnixStream::connect_addr(&address).map_err(gone)?;
    let line = match request {
        ControlRequest::Commit(name) => json!({"commit": name}),
        ControlRequest::Compact => json!({"compact": true}),
        ControlRequest::CheckWriter => json!({"check_writer": true}),
        ControlRequest::Statistics => json!({"statistics": true}),
        ControlRequest::End => json!({"end": true}),
    };
    writeln!(stream, "{line}").map_err(gone)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(gone)?;
    let answer: Value = serde_json::from_str(&answer).map_err(|_| {
        let context = format!("{}: the mount ended without an answer", mountpoint.display());
        Error::new(Kind::Closed, context)
    })?;
    match answer["error"].as_str() {
        None => Ok(answer),
        Some(what) => {
            let code = answer["code"].as_u64().and_then(|code| u8::try_from(code).ok());
            let kind = code.and_then(Kind::of_exit_code).unwrap_or(Kind::Unavailable);
            Err(Error::new(kind, what))
        }
    }
}

/// The socket of a mount.
pub(crate) struct ControlListener {
    socket: UnixListener,
    name: String,
}

/// A client that waits for an answer.
#[derive(Debug)]
pub(crate) struct ControlClient(UnixStream);

impl ControlListener {
    /// Creates a socket with a new address.
    pub(crate) fn new() -> std::io::Result<Self> {
        let name = format!("esker-{:032x}", Random::from_system().u128());
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Ok(Self { socket, name })
    }

    /// The value of the root's attribute.
    pub(crate) fn status(&self, name: &str, set: Option<String>) -> Vec<u8> {
        let pid = std::process::id();
        let status = json!({"pid": pid, "name": name, "set": set, "socket": self.name});
        status.to_string().into_bytes()
    }

    /// Accepts the next request, and the client that waits for its answer. Answers unauthorized
    /// clients and invalid requests itself.
    pub(crate) fn next(&self) -> std::io::Result<(ControlRequest, ControlClient)> {
        loop {
            let (stream, _) = self.socket.accept()?;
            let mut asker = ControlClient(stream);
            match asker.request() {
                Ok(request) => return Ok((request, asker)),
                Err(error) => asker.answer(&Err(error)),
            }
        }
    }
}

impl ControlClient {
    fn request(&mut self) -> Result<ControlRequest> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0)
            .map_err(|errno| Error::io(errno.into(), "who asks"))?;
        let own = rustix::process::geteuid();
        if !peer.uid.is_root() && peer.uid != own {
            return Err(Error::new(Kind::Denied, "the mount belongs to another user"));
        }
        let unclear = |_| Error::new(Kind::Invalid, "the mount did not get a request");
        self.0.set_read_timeout(Some(PATIENCE)).map_err(unclear)?;
        let mut line = String::new();
        let limited = std::io::Read::take(&self.0, REQUEST_BYTES_MAX);
        BufReader::new(limited).read_line(&mut line).map_err(unclear)?;
        let request: Value = serde_json::from_str(&line).unwrap_or_default();
        let asks_to = |what: &str| request[what].as_bool() == Some(true);
        match request["commit"].as_str() {
            Some(name) => Ok(ControlRequest::Commit(name.to_owned())),
            None if asks_to("compact") => Ok(ControlRequest::Compact),
            None if asks_to("check_writer") => Ok(ControlRequest::CheckWriter),
            None if asks_to("statistics") => Ok(ControlRequest::Statistics),
            None if asks_to("end") => Ok(ControlRequest::End),
            None => Err(Error::new(Kind::Invalid, "the mount does not know this request")),
        }
    }

    /// Sends the answer; the client may be gone by now.
    pub(crate) fn answer(&mut self, answer: &Result<Value>) {
        let line = match answer {
            Ok(value) => value.clone(),
            Err(error) => json!({"error": error.to_string(), "code": error.kind().exit_code()}),
        };
        let _ = writeln!(self.0, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood_and_nonsense_is_answered() {
        let listener = ControlListener::new().expect("a socket");
        let say = |line: &'static str| {
            let address = SocketAddr::from_abstract_name(&listener.name).expect("an address");
            let mut stream = UnixStream::connect_addr(&address).expect("it listens");
            writeln!(stream, "{line}").expect("it reads");
            stream
        };
        let refused = say("{\"what\": 1}");
        let _commit = say("{\"commit\": \"a\"}");
        assert_eq!(listener.next().expect("a request").0, ControlRequest::Commit("a".into()));
        let mut line = String::new();
        BufReader::new(refused).read_line(&mut line).expect("an answer");
        assert!(line.contains("does not know"), "{line}");
        let _end = say("{\"end\": true}");
        assert_eq!(listener.next().expect("a request").0, ControlRequest::End);
        let _check = say("{\"check_writer\": true}");
        assert_eq!(listener.next().expect("a request").0, ControlRequest::CheckWriter);
        let _compact = say("{\"compact\": true}");
        assert_eq!(listener.next().expect("a request").0, ControlRequest::Compact);
        let _statistics = say("{\"statistics\": true}");
        assert_eq!(listener.next().expect("a request").0, ControlRequest::Statistics);
    }

    #[test]
    fn mounts_of_esker_are_found_among_others() {
        let of = |line: &str| MountedFileSystem::of_line(line.as_bytes()).and_then(mount_of_esker);
        let mount = |at: &str, name: &str, uid| {
            Some(ListedMount { mountpoint: at.into(), name: name.to_owned(), uid })
        };
        let esker =
            "98 1 0:50 / /mnt/a\\040b rw,noatime shared:5 - fuse.esker esker:a rw,user_id=7,x";
        assert_eq!(of(esker), mount("/mnt/a b", "a", Some(7)));
        let without_options = "98 1 0:50 / /mnt rw - fuse esker:a rw";
        assert_eq!(of(without_options), mount("/mnt", "a", None));
        assert_eq!(of("22 1 0:5 / /fuse.esker rw shared:5 - ext4 esker:a rw"), None);
        assert_eq!(of("22 1 0:5 / /mnt rw shared:5 - fuse sshfs rw"), None);
    }
}
