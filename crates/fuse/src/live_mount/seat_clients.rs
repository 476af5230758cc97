// SPDX-License-Identifier: Apache-2.0
//! Seat clients: the connections of a mount to the servers of all seats of its live namespace.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_fs::names::live_namespace::LiveNamespace;
use esker_live::LiveConnection;
use esker_live::client::{Answer, LiveClientOptions, Request, SharedConnection};

/// The connections to the server of one seat.
#[derive(Debug)]
pub(super) struct SeatClient {
    pub(super) connection: SharedConnection,
    /// A second client, whose syncs do not hold up the answers to other requests.
    pub(super) syncing: SharedConnection,
    /// The server that has the open files of this mount open.
    server: AtomicU64,
}

impl SeatClient {
    /// True if another server has taken over since [`SeatClient::set_opened`].
    pub(super) fn has_new_server(&self) -> bool {
        self.server.load(Ordering::Relaxed) != self.connection.server()
    }

    /// Records that `server` has all open files open.
    pub(super) fn set_opened(&self, server: u64) {
        self.server.store(server, Ordering::Relaxed);
    }
}

/// The connections to all seats, by seat.
#[derive(Debug)]
pub(super) struct SeatClients(Vec<SeatClient>);

impl SeatClients {
    /// Connects to the servers of all seats of the live namespace `name`. Cost: that of two
    /// connections to each.
    ///
    /// # Errors
    /// As [`LiveConnection::connect`].
    pub(super) fn connect(
        store: &SharedStore,
        name: &str,
        options: &LiveClientOptions,
    ) -> Result<Self> {
        let seats = LiveNamespace::load(&**store, name)?.seats.len();
        let connect = |seat| {
            let seat = u16::try_from(seat).expect("at most SEATS_MAX");
            let connect = || LiveConnection::connect(store, (name, seat), options.clone());
            let connection = SharedConnection::new(connect()?);
            let syncing = SharedConnection::new(connect()?);
            let server = AtomicU64::new(connection.server());
            Ok(SeatClient { connection, syncing, server })
        };
        (0..seats).map(connect).collect::<Result<_>>().map(Self)
    }

    /// All of them, by seat.
    pub(super) fn all(&self) -> impl Iterator<Item = (u16, &SeatClient)> {
        (0..).zip(&self.0)
    }

    /// The connection to the seat that has the root.
    pub(super) fn root(&self) -> &SeatClient {
        &self.0[0]
    }

    /// The connection by which `request` goes.
    ///
    /// # Errors
    /// `Corrupt` for a directory at a seat that the namespace does not have.
    pub(super) fn of(&self, request: &Request) -> Result<&SharedConnection> {
        let client = self.0.get(usize::from(request.seat())).ok_or_else(|| {
            let what = format!("a directory at seat {}, which does not exist", request.seat());
            Error::new(Kind::Corrupt, what)
        })?;
        Ok(&client.connection)
    }

    /// Sends `requests`, all to one seat and carried out in order, and returns their answers.
    ///
    /// # Errors
    /// As [`SharedConnection::call_all`].
    pub(super) fn call_all<const N: usize>(
        &self,
        requests: [Request; N],
    ) -> Result<[Result<Answer>; N]> {
        self.of(&requests[0])?.call_all(requests)
    }

    /// Number of takeovers so far that may have lost changes which were answered and not synced.
    pub(super) fn losses(&self) -> u64 {
        self.0.iter().map(|client| client.connection.losses()).sum()
    }

    /// The server that answered last at the seat of `request`.
    pub(super) fn server_of(&self, request: &Request) -> Result<u64> {
        self.of(request).map(SharedConnection::server)
    }
}
