// SPDX-License-Identifier: Apache-2.0
//! Condemning: how a change set passes from live to deleted without a lock.
//!
//! ```text
//! live ──no markers──► condemned ──still none──► doomed ──► objects deleted ──► manifest deleted
//!   ▲                      │                        ▲
//!   └──── a marker ────────┤                        │ no markers
//!                          └─only data is needed─► data only ──► tables deleted
//! ```
//! Each arrow except the deletions is a commit of the next manifest, so exactly one of "restore"
//! and "doom" happens.
//!
//! To hold a set, a process first puts a marker and then reads the manifest. If it finds the set
//! live, the collector, which lists markers after condemning it, finds the marker. If it finds the
//! set condemned, it restores the set itself or loses to "doom".
//!
//! Markers of sets that need only data logs ([`MarkerHolder::Data`]) do not restore a set, but keep
//! it from being doomed: the collector commits that its tables are gone, and deletes them and the
//! logs to which no such set refers. A squash that begins to refer to a log found the reference in
//! another set, and holds that set until it has committed, so a marker of this kind exists for as
//! long as a log is needed.
//!
//! Committing under a higher epoch fences a writer that is still running. Before a collector dooms
//! a set that may be about to get a name, it fences publications of that name (`publication.rs`). A
//! process that reopens a part of a job condemns it in the same way, until it knows that no other
//! process uses it.
//!
//! A process dooms a set that has markers but no manifest by putting its first manifest: either
//! that manifest or the one with which the set begins exists, never both. The markers of a set that
//! has begun therefore existed before the set read what they hold.
//! Source: docs/design/0002-garbage.md.

use std::collections::BTreeSet;
use std::time::Duration;

use esker_base::store::{Store, concurrent};
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{EPOCH_MAX, Manifest, NUMBER_MAX, SetId, SetState};

use crate::names;
use crate::retention::marker::{self, MarkerHolder};

/// Maximum number of lost races in a row.
pub(crate) const TRIES_MAX: usize = 8;
/// Initial wait of a process that cannot restore a set; it doubles each time.
const WAIT: Duration = Duration::from_millis(5);

/// State of a set's deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionPhase {
    /// In use, or not examined yet.
    Live,
    /// It may be restored.
    Condemned,
    /// It is being deleted.
    Doomed,
    /// Only data logs are left, to which other sets refer.
    DataOnly,
}

/// Outcome of an attempt to doom a set.
#[derive(Debug)]
pub(crate) enum CondemnVerdict {
    /// The set is held or in use.
    Kept,
    /// The set is doomed; this is its last manifest.
    Doomed(Box<Manifest>),
    /// Only sets that refer to its data logs hold it: its tables go, and it needs no other sets.
    DataOnly {
        /// The previous manifest, if this call made the change.
        before: Option<Box<Manifest>>,
    },
    /// The set does not exist any more.
    Gone,
}

/// Returns the state of deletion of the set of `manifest`.
pub(crate) fn phase(manifest: &Manifest) -> DeletionPhase {
    match manifest.state {
        SetState::Open | SetState::Sealed => DeletionPhase::Live,
        SetState::CondemnedOpen | SetState::CondemnedSealed => DeletionPhase::Condemned,
        SetState::Doomed => DeletionPhase::Doomed,
        SetState::DataOnly => DeletionPhase::DataOnly,
    }
}

/// True if another process committed first.
pub(crate) fn is_race(error: &Error) -> bool {
    matches!(error.kind(), Kind::Conflict | Kind::Fenced)
}

/// Commits `manifest` as the next one; false if another process committed first.
fn commit(manifest: &mut Manifest, store: &dyn Store, set: SetId, now_ns: u64) -> Result<bool> {
    manifest.epoch += 1;
    // Two collectors may commit at the same time under the same epoch.
    match manifest.claim(store, set, now_ns) {
        Ok(()) => Ok(true),
        Err(error) if is_race(&error) => Ok(false),
        // There was no room, and now there is a manifest of that number, probably another process's.
        Err(error) if error.kind() == Kind::Closed => match Manifest::newest_number(store, set) {
            Ok(newest) if newest > manifest.number => Ok(false),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Restores a condemned set; false if another process committed first.
fn restore(store: &dyn Store, set: SetId, mut manifest: Manifest) -> Result<bool> {
    manifest.state = match manifest.state {
        SetState::CondemnedOpen => SetState::Open,
        _ => SetState::Sealed,
    };
    fence(store, set, manifest)
}

/// Commits a higher epoch to `set`, whose newest manifest was `manifest`, so that a process that
/// has read an earlier one cannot commit; false if another process committed first.
pub(crate) fn fence(store: &dyn Store, set: SetId, mut manifest: Manifest) -> Result<bool> {
    // Keeps the time of the manifest, so that the age of obsolete tables does not change.
    let written_ns = manifest.written_ns;
    commit(&mut manifest, store, set, written_ns)
}

/// Returns the newest manifest of `set`, which is live; restores it if it was condemned but is
/// held. In a full store it waits for a collection to restore the set, and finally takes a part of
/// the store's reserve.
///
/// # Errors
/// `NotFound` if the set is gone or being deleted; `NoSpace` if it is condemned, and neither the
/// store nor its reserve has room to restore it; as [`Manifest::load`].
pub(crate) fn load_live(store: &dyn Store, set: SetId) -> Result<Manifest> {
    load_live_expecting(store, set, None)
}

/// Like [`load_live`], for a set whose newest manifest recently had the number `expected`.
pub(crate) fn load_live_expecting(
    store: &dyn Store,
    set: SetId,
    expected: Option<u64>,
) -> Result<Manifest> {
    load_or_restore(store, set, expected, WhenFull::Wait)
}

/// Like [`load_live`], for a collector: fails with `NoSpace` at once if there is no room to restore
/// the set. The collector itself releases the reserve, and others wait for it.
pub(crate) fn restore_held(store: &dyn Store, set: SetId) -> Result<Manifest> {
    load_or_restore(store, set, None, WhenFull::Fail)
}

/// The course of a process that must restore a set in a full store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenFull {
    /// It waits for a collector, and then takes the reserve.
    Wait,
    /// It fails.
    Fail,
}

/// Loads the newest manifest, given that number `expected` was the newest a moment ago. On a far
/// store it is read while numbers are listed.
fn load_expecting(store: &dyn Store, set: SetId, expected: Option<u64>) -> Result<Manifest> {
    let Some(expected) = expected.filter(|_| store.requests_at_once() > 1) else {
        return Manifest::load(store, set);
    };
    let newest = || Manifest::newest_number(store, set);
    let read = || Ok(Manifest::load_number(store, set, expected));
    let is_missing = |error: &Error| error.kind() == Kind::NotFound;
    match concurrent::try_join(store, newest, read)? {
        (newest, read) if newest == expected && !read.as_ref().is_err_and(is_missing) => read,
        // A newer manifest rules by now.
        _ => Manifest::load(store, set),
    }
}

fn load_or_restore(
    store: &dyn Store,
    set: SetId,
    mut expected: Option<u64>,
    when_full: WhenFull,
) -> Result<Manifest> {
    let mut wait = WAIT;
    for left in (0..TRIES_MAX).rev() {
        let manifest = load_expecting(store, set, expected.take())?;
        match phase(&manifest) {
            DeletionPhase::Live => return Ok(manifest),
            DeletionPhase::Condemned
                if marker::holders(store, set)?.iter().any(MarkerHolder::keeps_tables) =>
            {
                // Waiting did not help; one more attempt is left to read the result.
                let takes_reserve = when_full == WhenFull::Wait && left == 1;
                let restored = match takes_reserve {
                    true => restore_with_reserve(store, set, &manifest),
                    false => restore(store, set, manifest),
                };
                let waits = match restored.as_ref().map_err(Error::kind) {
                    // A process without write permission waits for the collector to see the marker.
                    Err(Kind::ReadOnly | Kind::Denied) => true,
                    // So does one without room: deletions need the reserve more than it does.
                    Err(Kind::NoSpace) => when_full == WhenFull::Wait && left > 1,
                    _ => false,
                };
                if waits {
                    std::thread::sleep(wait);
                    wait *= 2;
                } else {
                    restored?;
                }
            }
            DeletionPhase::Condemned | DeletionPhase::Doomed => {
                let context = format!("change set {set} is being deleted");
                return Err(Error::new(Kind::NotFound, context));
            }
            DeletionPhase::DataOnly => {
                let context = format!(
                    "change set {set} was deleted except for data that other change sets need"
                );
                return Err(Error::new(Kind::NotFound, context));
            }
        }
    }
    Err(Error::new(Kind::Conflict, format!("change set {set} keeps changing; try again")))
}

/// Restores a condemned set with as much of the store's reserve as that takes; false if another
/// process committed first. The commit deletes an older manifest, so it frees room as well.
fn restore_with_reserve(store: &dyn Store, set: SetId, manifest: &Manifest) -> Result<bool> {
    loop {
        match restore(store, set, manifest.clone()) {
            Err(error) if error.kind() != Kind::NoSpace => return Err(error),
            Err(_) if store.release_reserve() => {}
            Err(error) => {
                let what = format!(
                    "restore change set {set}, which a collection condemned although it is needed: \
                     make room, or run `esker gc`"
                );
                return Err(error.within(what));
            }
            restored => return restored,
        }
    }
}

/// Ensures that the data logs of `set`, on which the caller has put a [`MarkerHolder::Data`]
/// marker, stay: a collector that listed the markers earlier loses its next commit. The set in
/// which the caller found the logs keeps them until this returns.
///
/// # Errors
/// `NotFound` if the set is gone or being deleted; as [`Manifest::load`].
pub(crate) fn keep_data(store: &dyn Store, set: SetId) -> Result<()> {
    for _ in 0..TRIES_MAX {
        let manifest = Manifest::load(store, set)?;
        match phase(&manifest) {
            DeletionPhase::Live | DeletionPhase::DataOnly => return Ok(()),
            DeletionPhase::Condemned => drop(restore(store, set, manifest)?),
            DeletionPhase::Doomed => {
                let context = format!("change set {set} was deleted meanwhile; try again");
                return Err(Error::new(Kind::NotFound, context));
            }
        }
    }
    Err(Error::new(Kind::Conflict, format!("change set {set} keeps changing; try again")))
}

/// Like [`load_live`], for a set whose manifest was `known`. Cost: a listing if it still is the
/// newest.
pub(crate) fn reload_live(store: &dyn Store, set: SetId, known: &Manifest) -> Result<Manifest> {
    if phase(known) == DeletionPhase::Live && Manifest::newest_number(store, set)? == known.number {
        return Ok(known.clone());
    }
    load_live(store, set)
}

/// The part of a set that its markers keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeptContent {
    All,
    Data,
    Nothing,
}

/// Returns the part of `set` that markers keep. Markers of names in `stale` count only if
/// `stands_for` finds that the name now stands for the set.
fn kept(
    store: &dyn Store,
    set: SetId,
    stale: &BTreeSet<MarkerHolder>,
    stands_for: &dyn Fn(&str) -> Result<bool>,
) -> Result<KeptContent> {
    let mut kept = KeptContent::Nothing;
    for holder in marker::holders(store, set)? {
        match &holder {
            MarkerHolder::Data(_) => kept = KeptContent::Data,
            MarkerHolder::Name(name) if stale.contains(&holder) => {
                match stands_for(name) {
                    Ok(false) => {}
                    // A name that cannot be read, or whose part keeps changing, may stand for any
                    // set.
                    Err(error) if ![Kind::Corrupt, Kind::Conflict].contains(&error.kind()) => {
                        return Err(error);
                    }
                    _ => return Ok(KeptContent::All),
                }
            }
            _ => return Ok(KeptContent::All),
        }
    }
    Ok(kept)
}

/// True if a set refers to data logs of `set`.
fn is_data_needed(store: &dyn Store, set: SetId) -> Result<bool> {
    Ok(marker::holders(store, set)?.iter().any(|holder| !holder.keeps_tables()))
}

/// Dooms `set` unless it is held, or reduces it to its data logs if only those are needed. `stale`
/// are markers of names that did not stand for it. Before the set is doomed, `fence` is called with
/// each of these names and the number of the manifest that condemned the set: it fences
/// publications that found the set live before that, and returns whether the name stands for it.
pub(crate) fn doom(
    store: &dyn Store,
    set: SetId,
    stale: &BTreeSet<MarkerHolder>,
    fence: &dyn Fn(&str, u64) -> Result<bool>,
    now_ns: u64,
) -> Result<CondemnVerdict> {
    let stands_for = |name: &str| names::stands_for(store, name, set);
    for _ in 0..TRIES_MAX {
        let mut manifest = match Manifest::load(store, set) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(CondemnVerdict::Gone),
            loaded => loaded?,
        };
        let number = manifest.number;
        let stands_finally = |name: &str| fence(name, number);
        match phase(&manifest) {
            DeletionPhase::Doomed => return Ok(CondemnVerdict::Doomed(Box::new(manifest))),
            // It cannot be restored, so other holders do not count. Checked twice: a listing may
            // show neither of two markers if one is put before the other is released.
            DeletionPhase::DataOnly
                if is_data_needed(store, set)? || is_data_needed(store, set)? =>
            {
                return Ok(CondemnVerdict::DataOnly { before: None });
            }
            DeletionPhase::DataOnly => {
                if doom_now(&mut manifest, store, set, now_ns)? {
                    return Ok(CondemnVerdict::Doomed(Box::new(manifest)));
                }
            }
            DeletionPhase::Condemned => match kept(store, set, stale, &stands_finally)? {
                KeptContent::All => {
                    if restore(store, set, manifest)? {
                        return Ok(CondemnVerdict::Kept);
                    }
                }
                KeptContent::Data => {
                    let before = Some(Box::new(manifest.clone()));
                    if keep_data_only(&mut manifest, store, set, now_ns)? {
                        return Ok(CondemnVerdict::DataOnly { before });
                    }
                }
                KeptContent::Nothing => {
                    if doom_now(&mut manifest, store, set, now_ns)? {
                        return Ok(CondemnVerdict::Doomed(Box::new(manifest)));
                    }
                }
            },
            DeletionPhase::Live if kept(store, set, stale, &stands_for)? == KeptContent::All => {
                return Ok(CondemnVerdict::Kept);
            }
            DeletionPhase::Live => {
                manifest.state = match manifest.state {
                    SetState::Open => SetState::CondemnedOpen,
                    _ => SetState::CondemnedSealed,
                };
                // A process that commits to a set without holders is about to hold it.
                if !commit(&mut manifest, store, set, now_ns)? {
                    return Ok(CondemnVerdict::Kept);
                }
            }
        }
    }
    Ok(CondemnVerdict::Kept)
}

/// Dooms `set`, whose newest manifest was `manifest`, even if it is held; false if another process
/// committed first.
pub(crate) fn doom_now(
    manifest: &mut Manifest,
    store: &dyn Store,
    set: SetId,
    now_ns: u64,
) -> Result<bool> {
    manifest.state = SetState::Doomed;
    commit(manifest, store, set, now_ns)
}

/// Commits that only the data logs of `set` are left; false if another process committed first.
fn keep_data_only(
    manifest: &mut Manifest,
    store: &dyn Store,
    set: SetId,
    now_ns: u64,
) -> Result<bool> {
    manifest.state = SetState::DataOnly;
    manifest.bases.clear();
    manifest.tables.clear();
    manifest.obsolete.clear();
    manifest.data_sets.clear();
    manifest.referenced_logs.clear();
    commit(manifest, store, set, now_ns)
}

/// Returns whether `set` is known to be doomed, so that no process changes it any more.
pub(crate) fn is_doomed(store: &dyn Store, set: SetId) -> bool {
    Manifest::load(store, set).is_ok_and(|manifest| phase(&manifest) == DeletionPhase::Doomed)
}

/// Dooms `set`, which has no manifest, so that it cannot begin any more. False if it has begun.
pub(crate) fn doom_missing(store: &dyn Store, set: SetId, now_ns: u64) -> Result<bool> {
    doom_after(store, set, 0, 1, now_ns)
}

/// Dooms `set`, whose newest manifest cannot be read, unless it is held. One step is enough: a set
/// that cannot be read is never restored, and gets no name.
pub(crate) fn doom_unreadable(
    store: &dyn Store,
    set: SetId,
    stale: &BTreeSet<MarkerHolder>,
    now_ns: u64,
) -> Result<CondemnVerdict> {
    let stands_for = |name: &str| names::stands_for(store, name, set);
    if kept(store, set, stale, &stands_for)? != KeptContent::Nothing {
        return Ok(CondemnVerdict::Kept);
    }
    match doom_damaged(store, set, now_ns) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(CondemnVerdict::Gone),
        Ok(true) => {}
        kept => return kept.map(|_| CondemnVerdict::Kept),
    }
    Manifest::load(store, set).map(|manifest| CondemnVerdict::Doomed(Box::new(manifest)))
}

/// Dooms `set`, whose newest manifest cannot be read, even if it is held; false if another process
/// committed first, or if there is no next number: no writer gets that far.
pub(crate) fn doom_damaged(store: &dyn Store, set: SetId, now_ns: u64) -> Result<bool> {
    let newest = Manifest::newest_number(store, set)?;
    // Above the epoch of any writer that is still running.
    Ok(newest < NUMBER_MAX && doom_after(store, set, newest, EPOCH_MAX - 1, now_ns)?)
}

/// Commits the doom of `set` as the manifest after `number`, under the epoch after `epoch`; false
/// if another manifest has that number or a higher one, unless it dooms the set, too.
fn doom_after(store: &dyn Store, set: SetId, number: u64, epoch: u64, now_ns: u64) -> Result<bool> {
    let mut manifest = Manifest::new(Vec::new(), now_ns);
    (manifest.number, manifest.epoch) = (number, epoch);
    manifest.state = SetState::Doomed;
    if commit(&mut manifest, store, set, now_ns)? {
        return Ok(true);
    }
    Ok(is_doomed(store, set))
}
