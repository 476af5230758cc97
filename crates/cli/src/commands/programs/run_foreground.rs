// SPDX-License-Identifier: Apache-2.0
//! Runs one program in the foreground, as a shell does: it has the terminal, and its signals.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use esker_base::{Error, Kind, Result};
use esker_comm::Rank;
use esker_comm::launch::JobOutcome;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

/// Runs a program to its end, with further variables in its environment. Signals that end programs
/// go to it, and not to this process.
///
/// # Errors
/// `NotFound` or `Denied` if it cannot be started.
pub fn run(command: &[OsString], environment: Vec<(OsString, OsString)>) -> Result<JobOutcome> {
    let [program, arguments @ ..] = command else {
        return Err(Error::new(Kind::Invalid, "name a program"));
    };
    // From here on no signal is lost.
    let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP]);
    let mut signals = signals.map_err(|error| Error::io(error, "listen for signals"))?;
    let child = Command::new(program).args(arguments).envs(environment).spawn();
    let mut child = child.map_err(|error| Error::io(error, program.to_string_lossy()))?;
    let process = Pid::from_child(&child);
    let has_terminal = std::io::stdin().is_terminal();
    let handle = signals.handle();
    let forwarder = std::thread::spawn(move || {
        for signal in signals.forever() {
            // A terminal sends these to all processes in its foreground.
            if has_terminal && matches!(signal, SIGINT | SIGQUIT) {
                continue;
            }
            if let Some(signal) = Signal::from_named_raw(signal) {
                // A program that has just ended needs no signal.
                let _ = kill_process(process, signal);
            }
        }
    });
    let status = child.wait().map_err(|error| Error::io(error, "wait for the program"));
    handle.close();
    forwarder.join().expect("forwarding signals does not panic");
    let status = status?;
    Ok(match (status.code(), status.signal()) {
        (Some(0), _) => JobOutcome::Success,
        (Some(code), _) => JobOutcome::Exit(Rank(0), u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => JobOutcome::Killed(Rank(0), signal.unwrap_or(0)),
    })
}
