// SPDX-License-Identifier: Apache-2.0
//! Seat snapshot: one snapshot of all seats of a live namespace.
//!
//! ```text
//! each seat   flush                most bytes, while changes go on
//! each seat   flush, freeze        changes wait
//! each seat   part: flush, commit
//! each seat   thaw                 to the first of these
//! seat        commit of the snapshot, which shows all parts; its name
//! ```
//! All parts are taken while no seat carries out a change, so the snapshot has a change only with
//! everything that any client had seen before it. Most bytes are flushed before changes wait.

use std::time::Duration;

use esker_base::Result;
use esker_table::manifest::{Manifest, SetId, decode_manifest};

use super::served_namespace::ServedNamespace;
use crate::client::{Answer, Request};
use crate::wire::FRAME_BYTES_MAX;

/// Time for which a freeze waits for files that are being moved: shorter than others wait for it.
const MOVES_PATIENCE: Duration = Duration::from_secs(4);

/// Publishes the state of all seats as `name`.
///
/// # Errors
/// `Exists`; `Conflict` while another snapshot is taken; `Unavailable` if a seat's server cannot be
/// reached; errors of the store.
pub(super) fn snapshot_seats(served: &ServedNamespace, name: &str) -> Result<SetId> {
    let _snapshot = served.seats().begin_snapshot()?;
    served.session().snapshot_with(name, |snapshot, take_own| {
        let holder = served.freeze().draw_holder();
        let parts = take_parts(served, holder, (snapshot, take_own));
        served.freeze().end(holder);
        if parts.is_err() {
            for seat in served.seats().numbers() {
                // A seat that does not hear it goes on by itself.
                let _ = served.seats().call_for_snapshot(seat, vec![Request::thaw()]);
            }
        }
        parts
    })
}

fn take_parts(
    served: &ServedNamespace,
    holder: u64,
    (snapshot, take_own): (SetId, &dyn Fn() -> Result<Manifest>),
) -> Result<Vec<Manifest>> {
    let seats = served.seats();
    for seat in seats.numbers() {
        // Flushes what is there, so that changes wait only for what comes in meanwhile.
        outcomes(seats.call_for_snapshot(seat, vec![Request::freeze(), Request::thaw()])?)?;
    }
    served.session().flush()?;
    for seat in seats.numbers() {
        outcomes(seats.call_for_snapshot(seat, vec![Request::freeze()])?)?;
    }
    freeze(served, holder)?;
    let mut parts = vec![take_own()?];
    for seat in seats.numbers() {
        for answer in seats.call_for_snapshot(seat, vec![Request::snapshot_part(snapshot)])? {
            let bytes =
                answer.only(|input| Ok(input.bytes(FRAME_BYTES_MAX, "a manifest")?.to_vec()))?;
            let part = decode_manifest(&bytes);
            parts.push(part.map_err(|damage| damage.of("the part of a snapshot", 0))?);
        }
    }
    // These fail if changes went on before all parts were taken.
    served.freeze().check(holder, served.clock())?;
    for seat in seats.numbers() {
        outcomes(seats.call_for_snapshot(seat, vec![Request::thaw()])?)?;
    }
    Ok(parts)
}

fn outcomes(answers: Vec<Answer>) -> Result<()> {
    answers.into_iter().try_for_each(|answer| answer.outcome())
}

/// Holds up the changes at the seat of `served` for `holder`, after most of them are flushed.
/// Returns once none is under way, and no file is being moved to another seat.
///
/// # Errors
/// `Conflict` while others are held up; `Unavailable` if a file is being moved to a seat that does not
/// answer; errors of the store.
pub(super) fn freeze(served: &ServedNamespace, holder: u64) -> Result<()> {
    served.session().flush()?;
    served.freeze().begin(holder, served.clock())?;
    drop(served.clients().lock());
    served.seats().moving().wait_for_end(MOVES_PATIENCE, served.clock())?;
    // The last step of a move is carried out under this lock.
    drop(served.clients().lock());
    Ok(())
}
