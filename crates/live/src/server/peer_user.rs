// SPDX-License-Identifier: Apache-2.0
//! Peer user: the user of the process at the other end of a Unix socket, as the kernel knows it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use esker_base::{Error, Result};
use esker_fs::stack::identity::Identity;
use rustix::net::sockopt::socket_peercred;

/// Initial room for supplementary groups; most users have fewer.
const GROUPS_GUESS: usize = 64;

/// Returns the user and groups of the process that opened `socket`.
///
/// # Errors
/// Those of the kernel.
pub(super) fn peer_user(socket: &impl AsFd) -> Result<Identity> {
    let failed = |error: io::Error| Error::io(error, "ask who opened a connection");
    let user = socket_peercred(socket).map_err(|errno| failed(errno.into()))?;
    let groups = peer_groups(socket.as_fd().as_raw_fd()).map_err(failed)?;
    Ok(Identity { uid: user.uid.as_raw(), gid: user.gid.as_raw(), groups })
}

fn peer_groups(socket: i32) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_GUESS];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&groups[..])).expect("few groups");
        // SAFETY: the kernel writes at most `bytes` bytes to the vector, which has that many, and
        // the number of bytes to `bytes`; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                socket,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_other_end_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let (mut found, mut own) = (peer_user(&one).expect("a user"), Identity::of_process());
        found.groups.sort_unstable();
        own.groups.sort_unstable();
        assert_eq!(found, own);
    }
}
