//! Interrupt: what a signal that ends a command leaves, and what it says.
//!
//! A thread waits for SIGINT and SIGTERM. At the first it gives up the sessions that this process has
//! begun for itself, by a connection of its own to the store, since the command's may be stuck; it
//! says on one line what was kept and how to go on; then the signal ends the process as if nothing had
//! caught it. A second signal ends it at once: what it began then goes with the next `esker gc`, as
//! after a kill. Sessions that others had begun stay: their logs have what was done.

#[cfg(debug_assertions)]
mod signal_store;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use esker_base::store::{SharedStore, url};
use esker_base::{Error, Result};
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::output::notice;

/// Lets signals end this command as said above; `advice` says what stays and how to go on where no
/// session was given up.
pub fn watch(store: Option<String>, options: SessionOptions, advice: &'static str) -> Result<()> {
    let failed = |error| Error::io(error, "wait for signals");
    let caught: Vec<i32> = [SIGINT, SIGTERM].into_iter().filter(|it| !is_ignored(*it)).collect();
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in &caught {
        // In this order: the first signal finds the flag unset, and sets it.
        signal_hook::flag::register_conditional_default(*signal, is_second.clone())
            .map_err(failed)?;
        signal_hook::flag::register(*signal, is_second.clone()).map_err(failed)?;
    }
    let mut signals = Signals::new(caught).map_err(failed)?;
    drop(std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end(store.as_deref(), &options, advice);
            // Returns only for signals that end nothing.
            let _ = emulate_default_handler(signal);
        }
    }));
    Ok(())
}

/// Whether whoever started this process wants it not to be disturbed, as a shell does with what it
/// runs in the background.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

fn end(store: Option<&str>, options: &SessionOptions, advice: &str) {
    let given_up = store
        .map_or(Ok(Vec::new()), |store| Repository::new(url::open(store)?).give_up_own(options));
    match given_up {
        Ok(sessions) if sessions.is_empty() => notice(format!("interrupted: {advice}")),
        Ok(sessions) => {
            let sets: Vec<String> =
                sessions.iter().map(|session| format!("@{}", session.node.set)).collect();
            let sets = sets.join(", ");
            notice(format!(
                "interrupted: nothing was published, and what was begun is given up ({sets}); \
                 `esker gc` frees its room"
            ));
        }
        Err(error) => notice(format!(
            "interrupted: what was begun could not be given up ({error}); `esker gc` does it"
        )),
    }
}

/// `store`; in builds for tests with a signal at the request that `ESKER_TEST_SIGNAL` names.
#[cfg(debug_assertions)]
pub fn with_test_signal(store: SharedStore) -> SharedStore {
    signal_store::wrap(store)
}

/// `store`.
#[cfg(not(debug_assertions))]
pub fn with_test_signal(store: SharedStore) -> SharedStore {
    store
}
