// SPDX-License-Identifier: Apache-2.0
//! Spread parts: keeps the parts of a spread directory whose removal failed.
//!
//! A removal closes all parts, and removes one after another. If one of them turns out to be in use, or
//! its server does not answer, the others are opened again, and those that are gone are made again: at
//! once where all servers answer, otherwise as soon as they do.

use std::sync::Arc;
use std::time::Duration;

use esker_base::Kind;
use esker_fs::inode::DirId;
use esker_fs::stack::identity::Identity;
use tokio::runtime::Runtime;
use tokio::task::block_in_place;

use super::carry_out::make_root;
use super::served_namespace::ServedNamespace;
use crate::client::Request;

/// Interval at which parts that could not be kept are tried again.
const KEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Opens all parts of the spread directory `id`, whose removal failed, and makes those that are gone.
/// Does nothing if this seat's part is gone: then all others were. Returns false unless all seats have
/// answered.
pub(super) fn keep_parts(served: &ServedNamespace, id: DirId) -> bool {
    let (seats, superuser) = (served.seats(), served.session_of(Identity::root()));
    seats.open_part(id);
    let own_root = superuser.open_seat_root(id);
    let own_root = match own_root.and_then(|root| superuser.namespace().stat_dir(&root)) {
        Ok(own_root) => own_root,
        Err(error) => return error.kind() == Kind::NotFound,
    };
    let keep = |seat| {
        let made = make_root((seat, id), &own_root).durable();
        let answers = seats.call(seat, vec![made, Request::close_part(seat, id, false)]);
        answers.into_iter().all(|answer| answer.and_then(|answer| answer.outcome()).is_ok())
    };
    (0..id.parts()).filter(|seat| *seat != served.seat()).all(keep)
}

/// Keeps the parts that could not be kept at once, until the server ends.
pub(super) fn keep_parts_later(runtime: &Runtime, served: Arc<ServedNamespace>) {
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(KEEP_INTERVAL).await;
            for id in served.seats().take_unkept() {
                if !block_in_place(|| keep_parts(&served, id)) {
                    served.seats().record_unkept(id);
                }
            }
        }
    });
}
