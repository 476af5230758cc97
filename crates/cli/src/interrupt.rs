// SPDX-License-Identifier: Apache-2.0
//! Interrupt: cleans up after a signal that ends a command, and reports what is left.
//!
//! A thread waits for SIGINT, SIGTERM and SIGHUP. At the first one it stops the command's puts into
//! the store (`gate_store`) and abandons the sessions that this process has begun for itself. It
//! uses its own connection to the store, since the command's may be stuck. It then prints one line
//! that says what was kept and how to continue, and the signal ends the process with its default
//! action. Signals that arrive within [`REPEAT`] of the first count as one: `timeout` signals the
//! command, and then its process group. A later signal ends the process at once: the next
//! `esker gc` collects what it began, as after a kill. Sessions that others began stay, and their
//! logs keep the changes. After the first signal the command itself neither reports nor exits: it
//! fails only because its sessions are abandoned.

mod gate_store;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use esker_base::store::{SharedStore, url};
use esker_base::{Error, Kind, Result};
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::change::SessionSettings;
use crate::context::CommandContext;
use crate::output::notice;
use crate::test_hooks::with_test_hooks;

/// The line to print if no session was abandoned: what stays and how to continue.
static ADVICE: Mutex<String> = Mutex::new(String::new());

/// Signals that arrive this soon after the first count as one with it.
const REPEAT: Duration = Duration::from_millis(500);

/// Set by the first signal.
static IS_ENDING: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the signal handling described above; `advice` is the line to print if no session was
/// abandoned.
pub fn watch(store: Option<String>, options: SessionOptions, advice: &str) -> Result<()> {
    let failed = |error| Error::io(error, "wait for signals");
    let caught: Vec<i32> =
        [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal)).collect();
    advise(advice.to_owned());
    let is_ending = IS_ENDING.get_or_init(Arc::default);
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in &caught {
        signal_hook::flag::register_conditional_default(*signal, is_second.clone())
            .map_err(failed)?;
        signal_hook::flag::register(*signal, is_ending.clone()).map_err(failed)?;
    }
    let mut signals = Signals::new(caught).map_err(failed)?;
    drop(std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            drop(std::thread::spawn(move || {
                std::thread::sleep(REPEAT);
                is_second.store(true, Ordering::Release);
            }));
            end(store.as_deref(), &options);
            // Returns only for signals whose default action does not end the process.
            let _ = emulate_default_handler(signal);
        }
    }));
    Ok(())
}

/// Replaces the advice once the command knows more. After the first signal the command changes nothing
/// more, so the advice stays.
pub fn advise(advice: String) {
    if !is_ending() {
        *ADVICE.lock().unwrap_or_else(PoisonError::into_inner) = advice;
    }
}

/// True after the first signal.
fn is_ending() -> bool {
    IS_ENDING.get().is_some_and(|is_ending| is_ending.load(Ordering::Acquire))
}

/// Returns if no signal is ending this process; otherwise blocks until it ends.
pub fn wait_if_ending() {
    while is_ending() {
        std::thread::park();
    }
}

/// True if the parent had this signal ignored, as a shell does for background commands.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Abandons the sessions that a failed command had begun for itself. If the store cannot be opened
/// this prints nothing, since that is why the command failed.
pub fn give_up_after_failure(context: &CommandContext) {
    let options = SessionSettings::for_few().options(context);
    let Some(Ok(store)) = context.given_store().map(url::open) else { return };
    if let Err(error) = Repository::new(store).give_up_own(&options) {
        notice(not_given_up(&error));
    }
}

fn not_given_up(error: &Error) -> String {
    format!("unfinished work could not be dropped ({error}); `esker gc` drops it")
}

fn end(store: Option<&str>, options: &SessionOptions) {
    gate_store::close();
    let given_up = store
        .map_or(Ok(Vec::new()), |store| Repository::new(url::open(store)?).give_up_own(options));
    match given_up {
        // There is no store, so the command cannot have begun a session in it.
        Err(error) if error.kind() == Kind::NotFound => notice_advice(),
        Ok(sessions) if sessions.is_empty() => notice_advice(),
        Ok(sessions) => {
            let sets: Vec<String> =
                sessions.iter().map(|session| format!("@{}", session.node.set)).collect();
            let sets = sets.join(", ");
            notice(format!(
                "interrupted: nothing was published, and unfinished work is dropped ({sets}); \
                 `esker gc` frees its space"
            ));
        }
        Err(error) => notice(format!("interrupted: {}", not_given_up(&error))),
    }
}

fn notice_advice() {
    let advice = ADVICE.lock().unwrap_or_else(PoisonError::into_inner);
    notice(format!("interrupted: {advice}"));
}

/// Wraps `store` so that no puts begin once a signal ends this process; in builds for tests, also
/// with the hooks from the environment.
pub fn guarded(store: SharedStore) -> SharedStore {
    with_test_hooks(gate_store::wrap(store))
}
