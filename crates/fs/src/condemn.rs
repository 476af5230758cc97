//! Condemning: how a change set passes from live to deleted without a lock.
//!
//! ```text
//! live ──no markers──► condemned ──still none──► doomed ──► objects deleted ──► manifest deleted
//!   ▲                      │                        ▲
//!   └──── a marker ────────┤                        │ no markers
//!                          └─only data is needed─► data only ──► tables deleted
//! ```
//! Each arrow but the last two is a commit of the next manifest, so exactly one of "restore" and
//! "doom" happens. Whoever wants a set first puts a marker and then reads the manifest: it finds
//! the set live, in which case the collector, which lists markers after it condemned, finds the
//! marker; or condemned, in which case it restores the set itself or loses to "doom". Markers of sets
//! that need only data logs ([`Holder::Data`]) do not restore a set, but keep it from being doomed: the
//! collector commits that its tables are gone, and deletes them and the logs to which no such set
//! refers. A squash that begins to refer to a log found the reference in another set, and holds that
//! set until it has committed, so there is a marker of this kind for as long as a log is needed.
//! Committing under a higher epoch fences a writer that is still there.
//! A set that has markers and no manifest is doomed by its first manifest: either that is there, or
//! the one by which the set begins, never both. So the markers of a set that has begun were there
//! from before it read what they hold.
//! Source: docs/design/0002-garbage.md.

use std::collections::BTreeSet;
use std::time::Duration;

use esker_base::store::Store;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{EPOCH_MAX, Manifest, NUMBER_MAX, SetId, SetState};

use crate::marker::{self, Holder};
use crate::names;

/// Others that commit at the same time are met at most this often in a row.
const TRIES_MAX: usize = 8;
/// How long a reader that cannot restore a set waits first; then twice as long each time.
const WAIT: Duration = Duration::from_millis(5);

/// How far the deletion of a set has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is in use, or nobody has looked.
    Live,
    /// It may be restored.
    Condemned,
    /// It is being deleted.
    Doomed,
    /// Nothing is left but data logs to which other sets refer.
    DataOnly,
}

/// What came of an attempt to doom a set.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Somebody holds it or works on it.
    Kept,
    /// It is doomed; this is its last manifest.
    Doomed(Box<Manifest>),
    /// Only sets that refer to its data logs hold it: its tables go, and it needs no other sets.
    DataOnly {
        /// Its manifest before, if this call is the one that has changed it.
        before: Option<Box<Manifest>>,
    },
    /// There is no such set any more.
    Gone,
}

/// How far the deletion of the set of `manifest` has come.
pub(crate) fn phase(manifest: &Manifest) -> Phase {
    match manifest.state {
        SetState::Open | SetState::Published => Phase::Live,
        SetState::CondemnedOpen | SetState::CondemnedPublished => Phase::Condemned,
        SetState::Doomed => Phase::Doomed,
        SetState::DataOnly => Phase::DataOnly,
    }
}

fn is_race(error: &Error) -> bool {
    matches!(error.kind(), Kind::Conflict | Kind::Fenced)
}

/// Commits `manifest` as the next one; false if somebody else committed first.
fn commit(manifest: &mut Manifest, store: &dyn Store, set: SetId, now_ns: u64) -> Result<bool> {
    manifest.epoch += 1;
    // Two collectors may commit at the same time under the same epoch.
    match manifest.claim(store, set, now_ns) {
        Ok(()) => Ok(true),
        Err(error) if is_race(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes back that a set was condemned; false if somebody else committed first.
fn restore(store: &dyn Store, set: SetId, mut manifest: Manifest) -> Result<bool> {
    manifest.state = match manifest.state {
        SetState::CondemnedOpen => SetState::Open,
        _ => SetState::Published,
    };
    // What is obsolete is as old as it was: the time of the snapshot stays.
    let written_ns = manifest.written_ns;
    commit(&mut manifest, store, set, written_ns)
}

/// The newest manifest of `set`, which is live: restored if it was condemned and is held after all.
///
/// # Errors
/// `NotFound` if the set is gone or going; as [`Manifest::load`].
pub(crate) fn load_live(store: &dyn Store, set: SetId) -> Result<Manifest> {
    load_live_expecting(store, set, None)
}

/// As [`load_live`], of a set whose newest manifest had the number `expected` a moment ago.
///
/// # Errors
/// As [`load_live`].
pub(crate) fn load_live_expecting(
    store: &dyn Store,
    set: SetId,
    mut expected: Option<u64>,
) -> Result<Manifest> {
    let mut wait = WAIT;
    for _ in 0..TRIES_MAX {
        let manifest = Manifest::load_expecting(store, set, expected.take())?;
        match phase(&manifest) {
            Phase::Live => return Ok(manifest),
            Phase::Condemned if marker::holders(store, set)?.iter().any(Holder::keeps_tables) => {
                match restore(store, set, manifest) {
                    // Who may only read waits for the collector to see the marker.
                    Err(error) if matches!(error.kind(), Kind::ReadOnly | Kind::Denied) => {
                        std::thread::sleep(wait);
                        wait *= 2;
                    }
                    restored => drop(restored?),
                }
            }
            Phase::Condemned | Phase::Doomed => {
                let context = format!("change set {set} is being deleted");
                return Err(Error::new(Kind::NotFound, context));
            }
            Phase::DataOnly => {
                let context = format!(
                    "change set {set} was deleted; others keep data that it wrote, and nothing else"
                );
                return Err(Error::new(Kind::NotFound, context));
            }
        }
    }
    Err(Error::new(Kind::Conflict, format!("change set {set} keeps changing; try again")))
}

/// Makes sure that the data logs of `set`, on which the caller has put a [`Holder::Data`] marker, stay:
/// a collector that listed the markers before the caller put it loses its next commit. Another set keeps
/// the logs until this returns: the one in which the caller found them.
///
/// # Errors
/// `NotFound` if the set is gone or going; as [`Manifest::load`].
pub(crate) fn keep_data(store: &dyn Store, set: SetId) -> Result<()> {
    for _ in 0..TRIES_MAX {
        let manifest = Manifest::load(store, set)?;
        match phase(&manifest) {
            Phase::Live | Phase::DataOnly => return Ok(()),
            Phase::Condemned => drop(restore(store, set, manifest)?),
            Phase::Doomed => {
                let context = format!("change set {set} was deleted meanwhile; try again");
                return Err(Error::new(Kind::NotFound, context));
            }
        }
    }
    Err(Error::new(Kind::Conflict, format!("change set {set} keeps changing; try again")))
}

/// As [`load_live`], of a set whose manifest was `known`. A listing if it still is.
///
/// # Errors
/// As [`load_live`].
pub(crate) fn reload_live(store: &dyn Store, set: SetId, known: &Manifest) -> Result<Manifest> {
    if phase(known) == Phase::Live && Manifest::newest_number(store, set)? == known.number {
        return Ok(known.clone());
    }
    load_live(store, set)
}

/// What the markers on a set keep of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    All,
    Data,
    Nothing,
}

/// What markers keep of `set`. Those of names that are among `stale` count only if the name stands for
/// the set by now.
fn kept(store: &dyn Store, set: SetId, stale: &BTreeSet<Holder>) -> Result<Kept> {
    let mut kept = Kept::Nothing;
    for holder in marker::holders(store, set)? {
        match &holder {
            Holder::Data(_) => kept = Kept::Data,
            Holder::Name(name) if stale.contains(&holder) => {
                match names::stands_for(store, name, set) {
                    Ok(false) => {}
                    // A name that cannot be read may stand for anything.
                    Err(error) if error.kind() != Kind::Corrupt => return Err(error),
                    _ => return Ok(Kept::All),
                }
            }
            _ => return Ok(Kept::All),
        }
    }
    Ok(kept)
}

/// Whether a set refers to data logs of `set`.
fn is_data_needed(store: &dyn Store, set: SetId) -> Result<bool> {
    Ok(marker::holders(store, set)?.iter().any(|holder| !holder.keeps_tables()))
}

/// Dooms `set` unless somebody holds it, or lets nothing of it stay but its data logs if only those are
/// needed. `stale` are markers of names that did not stand for it.
pub(crate) fn doom(
    store: &dyn Store,
    set: SetId,
    stale: &BTreeSet<Holder>,
    now_ns: u64,
) -> Result<Verdict> {
    for _ in 0..TRIES_MAX {
        let mut manifest = match Manifest::load(store, set) {
            Err(error) if error.kind() == Kind::NotFound => return Ok(Verdict::Gone),
            loaded => loaded?,
        };
        match phase(&manifest) {
            Phase::Doomed => return Ok(Verdict::Doomed(Box::new(manifest))),
            // Nobody can restore it, so whatever else holds it counts for nothing. Twice: a listing may
            // show neither of two markers of which one is put before the other is released.
            Phase::DataOnly if is_data_needed(store, set)? || is_data_needed(store, set)? => {
                return Ok(Verdict::DataOnly { before: None });
            }
            Phase::DataOnly => {
                if doom_now(&mut manifest, store, set, now_ns)? {
                    return Ok(Verdict::Doomed(Box::new(manifest)));
                }
            }
            Phase::Condemned => match kept(store, set, stale)? {
                Kept::All => {
                    if restore(store, set, manifest)? {
                        return Ok(Verdict::Kept);
                    }
                }
                Kept::Data => {
                    let before = Some(Box::new(manifest.clone()));
                    if keep_data_only(&mut manifest, store, set, now_ns)? {
                        return Ok(Verdict::DataOnly { before });
                    }
                }
                Kept::Nothing => {
                    if doom_now(&mut manifest, store, set, now_ns)? {
                        return Ok(Verdict::Doomed(Box::new(manifest)));
                    }
                }
            },
            Phase::Live if kept(store, set, stale)? == Kept::All => return Ok(Verdict::Kept),
            Phase::Live => {
                manifest.state = match manifest.state {
                    SetState::Open => SetState::CondemnedOpen,
                    _ => SetState::CondemnedPublished,
                };
                // Somebody who commits to a set that nobody holds is about to hold it.
                if !commit(&mut manifest, store, set, now_ns)? {
                    return Ok(Verdict::Kept);
                }
            }
        }
    }
    Ok(Verdict::Kept)
}

fn doom_now(manifest: &mut Manifest, store: &dyn Store, set: SetId, now_ns: u64) -> Result<bool> {
    manifest.state = SetState::Doomed;
    commit(manifest, store, set, now_ns)
}

/// Commits that nothing of `set` is left but its data logs; false if somebody else committed first.
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

/// Dooms `set`, which has no manifest: it cannot begin any more. False if it has begun.
pub(crate) fn doom_missing(store: &dyn Store, set: SetId, now_ns: u64) -> Result<bool> {
    doom_after(store, set, 0, 1, now_ns)
}

/// Dooms `set`, whose newest manifest cannot be read, unless somebody holds it. One step is enough:
/// nobody can have read what would have to be restored.
pub(crate) fn doom_unreadable(
    store: &dyn Store,
    set: SetId,
    stale: &BTreeSet<Holder>,
    now_ns: u64,
) -> Result<Verdict> {
    if kept(store, set, stale)? != Kept::Nothing {
        return Ok(Verdict::Kept);
    }
    let newest = match Manifest::newest_number(store, set) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(Verdict::Gone),
        newest => newest?,
    };
    if newest >= NUMBER_MAX {
        // No writer gets that far, and there is no next number. What cannot be read is reported.
        return Ok(Verdict::Kept);
    }
    // Over the epoch of any writer that is still there.
    if !doom_after(store, set, newest, EPOCH_MAX - 1, now_ns)? {
        return Ok(Verdict::Kept);
    }
    Manifest::load(store, set).map(|manifest| Verdict::Doomed(Box::new(manifest)))
}

/// Commits that `set` is doomed as the manifest after `number`, under the epoch after `epoch`; false
/// if there is another manifest of that number, or a higher one, that does not say so.
fn doom_after(store: &dyn Store, set: SetId, number: u64, epoch: u64, now_ns: u64) -> Result<bool> {
    let mut manifest = Manifest::new(Vec::new(), now_ns);
    (manifest.number, manifest.epoch) = (number, epoch);
    manifest.state = SetState::Doomed;
    if commit(&mut manifest, store, set, now_ns)? {
        return Ok(true);
    }
    Ok(Manifest::load(store, set).is_ok_and(|other| phase(&other) == Phase::Doomed))
}
