// SPDX-License-Identifier: Apache-2.0
//! Shared connection: one client whose requests come from many threads.
//!
//! A thread submits its requests under the lock and sends them at once. One of the threads that
//! wait, the receiver, waits for the socket without the lock and hands out all answers; when it has
//! its own, another one of them becomes the receiver. A thread that is alone does everything itself,
//! so it waits for no other thread.

use esker_base::{Error, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::answer::Answer;
use super::answered_changes::SyncPoint;
use super::connection::LiveConnection;
use super::pending::Request;

/// A connection that threads share.
#[derive(Debug)]
pub struct SharedConnection {
    state: Mutex<SharedState>,
    /// Notified when answers have arrived, and when there is no receiver.
    changed: Condvar,
}

#[derive(Debug)]
struct SharedState {
    connection: LiveConnection,
    /// True while a thread waits for the socket.
    has_receiver: bool,
}

impl SharedConnection {
    /// Shares `connection`, which has no request under way.
    #[must_use]
    pub fn new(connection: LiveConnection) -> Self {
        let state = Mutex::new(SharedState { connection, has_receiver: false });
        Self { state, changed: Condvar::new() }
    }

    /// Sends `request` and returns its answer.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn call(&self, request: Request) -> Result<Answer> {
        let [answer] = self.call_all([request])?;
        answer
    }

    /// Sends `requests` together, to be carried out in order, and returns their answers. Cost: a
    /// round trip.
    ///
    /// # Errors
    /// As [`LiveConnection::submit`]; those before the request that cannot be submitted are then
    /// carried out. The errors of each are in its place.
    pub fn call_all<const N: usize>(&self, requests: [Request; N]) -> Result<[Result<Answer>; N]> {
        let mut state = self.state.lock();
        let mut numbers = Vec::with_capacity(N);
        let mut refused = None;
        for request in requests {
            match state.connection.submit(request) {
                Ok(number) => numbers.push(number),
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        let answers: Vec<_> =
            numbers.into_iter().map(|number| self.wait(&mut state, number)).collect();
        match refused {
            Some(error) => Err(error),
            None => Ok(answers.try_into().expect("one for each request")),
        }
    }

    /// Sends `request` with the next one of any thread. Its answer is dropped.
    ///
    /// # Errors
    /// As [`LiveConnection::submit`].
    pub fn submit_unanswered(&self, request: Request) -> Result<()> {
        let mut state = self.state.lock();
        let number = state.connection.submit(request)?;
        state.connection.drop_answer(number);
        Ok(())
    }

    /// Returns once the requests of [`SharedConnection::submit_unanswered`] are carried out. Cost:
    /// none if they are; otherwise a round trip.
    ///
    /// # Errors
    /// As [`LiveConnection::wait`].
    pub fn finish_unanswered(&self) -> Result<()> {
        let (awaits, seat) = {
            let connection = &self.state.lock().connection;
            (connection.awaits_dropped(), connection.seat())
        };
        if awaits { self.call(Request::null().for_seat(seat)).map(drop) } else { Ok(()) }
    }

    /// The server that answered last. After a takeover it is another one, which has no file of this
    /// client open.
    #[must_use]
    pub fn server(&self) -> u64 {
        self.state.lock().connection.changes().server()
    }

    /// The moment up to which another client can sync the changes of this one, by a sync that the
    /// same server answers: [`SharedConnection::set_synced`].
    #[must_use]
    pub fn sync_point(&self) -> SyncPoint {
        self.state.lock().connection.changes().sync_point()
    }

    /// Records that the changes that were answered before `point` survive power loss, except for
    /// those that earlier takeovers lost: its server has answered another client's sync since.
    pub fn set_synced(&self, point: SyncPoint) {
        self.state.lock().connection.changes().set_synced(point.answered);
    }

    /// Number of takeovers so far that may have lost changes which were answered and not synced.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.state.lock().connection.changes().losses()
    }

    fn wait(&self, state: &mut MutexGuard<SharedState>, number: u64) -> Result<Answer> {
        loop {
            if let Some(answer) = state.connection.take_answer(number) {
                return answer;
            }
            state.connection.send_gathered_now();
            if state.has_receiver {
                self.changed.wait(state);
                continue;
            }
            state.has_receiver = true;
            let socket = state.connection.socket();
            let ready = MutexGuard::unlocked(state, || socket.wait());
            let received = state.connection.receive_ready(ready);
            state.has_receiver = false;
            self.changed.notify_all();
            if let Err(error) = received
                && !state.connection.has_answer(number)
            {
                state.connection.drop_answer(number);
                return Err(Error::new(error.kind(), error.to_string()));
            }
        }
    }
}
