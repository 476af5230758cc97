// SPDX-License-Identifier: Apache-2.0
//! Admission: the number of connections that a server has, in all and for each user.
//!
//! A connection takes a descriptor, which the store needs, too, and counts until its answers are
//! sent or given up. Handshakes are counted separately: those of local users whom the server admits,
//! those of other local users, and those over TCP. Users who are refused therefore neither take the
//! places of connected clients nor keep others out. Machines that reach the TCP port can delay new
//! clients of other machines, whose users are unknown until their handshakes end. A user other than
//! the server's has at most a share of all connections.

use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Handshakes under way at once, of each kind of [`HandshakePeer`].
const HANDSHAKES_MAX: usize = 256;
/// A user other than the server's has at most one in this many of all connections.
const USER_SHARE: usize = 4;

/// The other end of a connection, as far as it is known when the handshake begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakePeer {
    /// The kernel names a user whom the server admits.
    AdmittedUser,
    /// The kernel names a user whom the server does not admit. The handshake tells it why.
    OtherUser,
    /// A process that reaches the TCP port, of an unknown user.
    Machine,
}

/// The connections of a server.
#[derive(Debug)]
pub(super) struct ConnectionAdmission {
    /// Handshakes by kind of peer.
    handshakes: [Arc<Semaphore>; 3],
    connections_max: usize,
    /// The user of the server.
    own_uid: u32,
    /// Connections by user.
    by_user: Mutex<HashMap<u32, usize>>,
}

/// A connection that counts while this is alive.
#[derive(Debug)]
pub(super) struct AdmittedConnection {
    admission: Arc<ConnectionAdmission>,
    uid: u32,
}

impl ConnectionAdmission {
    /// Admits up to `connections_max` connections to a server of the user `own_uid`.
    pub fn new(connections_max: usize, own_uid: u32) -> Arc<Self> {
        let handshakes = [(); 3].map(|()| Arc::new(Semaphore::new(HANDSHAKES_MAX)));
        Arc::new(Self { handshakes, connections_max, own_uid, by_user: Mutex::default() })
    }

    /// Admits a handshake, which lasts as long as the permit; `None` if there are too many.
    pub fn permit_handshake(&self, peer: HandshakePeer) -> Option<OwnedSemaphorePermit> {
        self.handshakes[peer as usize].clone().try_acquire_owned().ok()
    }

    /// Number of connections now.
    pub fn connections(&self) -> usize {
        self.by_user.lock().values().sum()
    }

    /// Admits a connection of the user `uid`.
    ///
    /// # Errors
    /// `Unavailable` if there are too many.
    pub fn admit(self: &Arc<Self>, uid: u32) -> Result<AdmittedConnection> {
        let mut by_user = self.by_user.lock();
        let all: usize = by_user.values().sum();
        if all >= self.connections_max {
            let what = format!("the server has {all} connections, which is the most it accepts");
            return Err(Error::new(Kind::Unavailable, what));
        }
        let own = by_user.entry(uid).or_default();
        let share = self.connections_max.div_ceil(USER_SHARE);
        if uid != self.own_uid && *own >= share {
            let what = format!("user {uid} has {own} connections to this server; close some");
            return Err(Error::new(Kind::Unavailable, what));
        }
        *own += 1;
        Ok(AdmittedConnection { admission: self.clone(), uid })
    }
}

impl Drop for AdmittedConnection {
    fn drop(&mut self) {
        let mut by_user = self.admission.by_user.lock();
        if let Some(own) = by_user.get_mut(&self.uid) {
            *own -= 1;
            if *own == 0 {
                by_user.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_user_takes_all_connections() {
        let admission = ConnectionAdmission::new(8, 7);
        let admit = |uid| admission.admit(uid);
        let others = [admit(1), admit(1), admit(2)].map(|admitted| admitted.expect("a share"));
        let refused = admit(1).expect_err("more than a share");
        assert_eq!(refused.kind(), Kind::Unavailable);
        let own: Vec<_> =
            (0..5).map(|_| admit(7).expect("the server's user has the rest")).collect();
        admit(7).expect_err("all are taken");
        admit(2).expect_err("all are taken");
        drop(own);
        admit(2).expect("there is room again");
        drop(others);
        assert!(admission.by_user.lock().is_empty());
    }

    #[test]
    fn handshakes_are_bounded_apart_from_connections() {
        let admission = ConnectionAdmission::new(8, 7);
        let permit = |peer| admission.permit_handshake(peer);
        let kinds = [HandshakePeer::AdmittedUser, HandshakePeer::OtherUser, HandshakePeer::Machine];
        for kind in kinds {
            let begun: Vec<_> = std::iter::from_fn(|| permit(kind)).collect();
            assert_eq!(begun.len(), HANDSHAKES_MAX);
            for other in kinds.into_iter().filter(|other| *other != kind) {
                assert!(permit(other).is_some(), "{kind:?} keeps {other:?} out");
            }
            admission.admit(7).expect("those who were known before are served");
            drop(begun);
            assert!(permit(kind).is_some(), "others may begin");
        }
    }
}
