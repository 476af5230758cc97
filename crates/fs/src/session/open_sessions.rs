// SPDX-License-Identifier: Apache-2.0
//! Open sessions: change sets without a name that sessions write, or left behind.

use std::time::Duration;

use esker_base::store::concurrent;
use esker_base::{Kind, Result};
use esker_table::manifest::{SetId, SetState};
use esker_table::object_name::ObjectFolder;
use hashbrown::HashMap;

use crate::maintenance::graph::GraphNode;
use crate::names;
use crate::repository::Repository;
use crate::retention::marker::{self, MarkerHolder};
use crate::session::SessionOptions;
use crate::session::hold::{HolderState, WriterHold};

/// A session whose set has no name yet.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// Its change set, which is complete if only the name is missing.
    pub node: GraphNode,
    /// Its current or last writer, if known.
    pub hold: Option<WriterHold>,
    /// Bytes of its logs that are not in tables yet.
    pub log_bytes: u64,
}

/// Sessions without a live writer.
#[derive(Debug)]
pub struct LeftSessions {
    /// Sessions that were given up, or would have been.
    pub given_up: Vec<OpenSession>,
    /// Sessions that stay.
    pub kept: Vec<OpenSession>,
}

impl OpenSession {
    /// True if no writer is alive any more, as far as that can be known.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.hold.as_ref().is_none_or(|hold| hold.state != HolderState::Alive)
    }

    /// The error if its manifest cannot be read; the changes of the session are then lost.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.node.manifest.as_ref().err().map(String::as_str)
    }

    /// True if a command began it for its own use and is gone, so that nobody will continue it.
    fn is_useless(&self) -> bool {
        self.hold
            .as_ref()
            .is_some_and(|hold| hold.writer.is_private && hold.state == HolderState::Ended)
    }

    /// True if it takes no more changes, and only its name is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.node.state(), Some(SetState::Sealed | SetState::CondemnedSealed))
    }

    /// The job of which it writes a part.
    fn job(&self) -> Option<u128> {
        let manifest = self.node.manifest.as_ref().ok()?;
        manifest.job.map(|membership| membership.job)
    }

    /// Time of the last write or beat, in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn seen_ns(&self) -> u64 {
        let written_ns = self.node.manifest.as_ref().map_or(0, |manifest| manifest.written_ns);
        self.hold.as_ref().map_or(written_ns, |hold| hold.seen_ns)
    }
}

impl Repository {
    /// Returns all sessions without a name, newest first, with those whose manifest cannot be read
    /// at the end. Cost: a listing, and some requests for each session; on a far store
    /// concurrently, in three round trips.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        let store = &**self.store();
        let markers = marker::all(store)?.into_iter();
        let mut sets: Vec<SetId> =
            markers.filter(|marker| marker.holder.is_session()).map(|marker| marker.set).collect();
        sets.sort_unstable();
        sets.dedup();
        let sessions = concurrent::try_map(store, &sets, |set| self.open_session(*set))?;
        let mut sessions: Vec<OpenSession> = sessions.into_iter().flatten().collect();
        let begun = |session: &OpenSession| {
            session.node.manifest.as_ref().map_or(0, |manifest| manifest.created_ns)
        };
        sessions.sort_by_key(|session| std::cmp::Reverse((begun(session), session.node.set)));
        Ok(sessions)
    }

    fn open_session(&self, set: SetId) -> Result<Option<OpenSession>> {
        let mut node = self.node(set, Vec::new())?;
        if node.manifest.as_ref().is_ok_and(|manifest| manifest.is_given_up) {
            return Ok(None);
        }
        if node.manifest.is_err() {
            // Without a manifest it is about to begin, or never did.
            if self.store().list_names(&ObjectFolder::Manifests(set).to_string())?.is_empty() {
                return Ok(None);
            }
            // It may have begun since the first look.
            node = self.node(set, Vec::new())?;
        }
        let Ok(manifest) = &node.manifest else {
            return Ok(Some(OpenSession { node, hold: None, log_bytes: 0 }));
        };
        // Its publisher may have died before it removed the session's marker.
        let is_named = |holder: &MarkerHolder| match holder {
            MarkerHolder::Name(name) => names::stands_for(&**self.store(), name, set),
            _ => Ok(false),
        };
        // A process that was stopped while it reopened a part has left it condemned; the next user
        // of the part restores it.
        let is_session = match manifest.state {
            SetState::Open | SetState::CondemnedOpen => true,
            SetState::Sealed | SetState::CondemnedSealed => {
                let named: Result<Vec<bool>> = node.holders.iter().map(is_named).collect();
                !named?.contains(&true)
            }
            _ => false,
        };
        if !is_session {
            return Ok(None);
        }
        let hold = || self.hold(set, manifest);
        let log_bytes = || self.unflushed_bytes_of(set, manifest);
        let (hold, log_bytes) = concurrent::try_join(&**self.store(), hold, log_bytes)?;
        Ok(Some(OpenSession { node, hold, log_bytes }))
    }

    /// Gives up useless sessions: those that a command of this machine had begun for its own use
    /// when it died and, with an `age`, all without a live writer that were last written at least
    /// that long ago. The parts of a job are as young as the youngest. With `dry_run`, gives up none. Cost: as [`Repository::open_sessions`], and
    /// some requests for each that is given up.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn give_up_left(
        &self,
        age: Option<Duration>,
        dry_run: bool,
        options: &SessionOptions,
    ) -> Result<LeftSessions> {
        let now_ns = self.clock().now_ns();
        let sessions = self.open_sessions()?;
        let mut jobs: HashMap<u128, u64> = HashMap::new();
        for session in &sessions {
            if let Some(job) = session.job() {
                let seen_ns = if session.is_left() { session.seen_ns() } else { now_ns };
                let youngest_ns = jobs.entry(job).or_default();
                *youngest_ns = seen_ns.max(*youngest_ns);
            }
        }
        let is_old = |session: &OpenSession| {
            let of_job = session.job().and_then(|job| jobs.get(&job).copied());
            let seen_ns = of_job.unwrap_or_else(|| session.seen_ns());
            let age_ns = u128::from(now_ns.saturating_sub(seen_ns));
            // The age of an unreadable one is unknown.
            session.damage().is_none()
                && session.is_left()
                && age.is_some_and(|age| age_ns >= age.as_nanos())
        };
        let (useless, mut kept): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|session| session.is_useless() || is_old(session));
        kept.retain(OpenSession::is_left);
        let given_up = if dry_run { useless } else { self.give_up_all(useless, options)? };
        Ok(LeftSessions { given_up, kept })
    }

    /// Gives up the sessions that this process, as identified by `options`, has begun for its own
    /// use; returns them. Cost: as [`Repository::give_up_left`].
    ///
    /// # Errors
    /// Errors of the store.
    pub fn give_up_own(&self, options: &SessionOptions) -> Result<Vec<OpenSession>> {
        let own = options.heartbeat.as_ref().map(|heartbeat| &heartbeat.writer.process);
        let mut sessions = self.open_sessions()?;
        sessions.retain(|session| {
            let writer = session.hold.as_ref().map(|hold| &hold.writer);
            writer.is_some_and(|writer| writer.is_private && Some(&writer.process) == own)
        });
        self.give_up_all(sessions, options)
    }

    fn give_up_all(
        &self,
        sessions: Vec<OpenSession>,
        options: &SessionOptions,
    ) -> Result<Vec<OpenSession>> {
        let mut given_up = Vec::with_capacity(sessions.len());
        for session in sessions {
            match self.give_up(session.node.set, options) {
                // Another process has resumed, published or given it up meanwhile.
                Err(error) if matches!(error.kind(), Kind::Conflict | Kind::NotFound) => {}
                done => {
                    done?;
                    given_up.push(session);
                }
            }
        }
        Ok(given_up)
    }
}
