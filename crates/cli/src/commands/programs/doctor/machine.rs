// SPDX-License-Identifier: Apache-2.0
//! Machine: all checks of this machine, and whether they leave a way to use Esker.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::{Error, Kind, Result};

use super::check::{CheckStatus, MachineCheck};
use super::mount_checks::TEMPORARY_DIRECTORY;
use super::program_way::MachineWays;
use super::search_path::may_write;
use super::store_checks::StoreChecks;
use super::way_commands::mpi_library_path;
use super::{limit_checks, mount_checks, mpi_checks, spool_checks};
use crate::context::CommandContext;

/// The checks of a machine, in the order in which they are shown.
pub struct MachineReport {
    checks: Vec<MachineCheck>,
    store_error: Option<Error>,
}

impl MachineReport {
    /// Checks everything.
    pub fn new(context: &CommandContext) -> Self {
        let (mut checks, store_error) = match context.given_store() {
            Some(url) => {
                let store = StoreChecks::of(context, url);
                (store.checks, store.error)
            }
            None => {
                let check = MachineCheck::new("store", CheckStatus::Info, "no store was given")
                    .advise("`esker doctor --store URL` checks one");
                (vec![check], None)
            }
        };
        checks.extend(checks_of_mounts());
        checks.push(run_at_check());
        checks.extend(spool_checks::spool_checks());
        checks.push(limit_checks::open_files_check(context));
        checks.extend(mpi_checks::mpi_checks());
        Self { checks, store_error }
    }

    /// Prints the checks.
    pub fn print(&self, context: &CommandContext) -> Result<()> {
        self.checks.iter().try_for_each(|check| check.print(context))
    }

    /// The result of the command.
    ///
    /// # Errors
    /// That of the store; `Unsupported` if programs can neither use a mount nor `esker run --at`.
    pub fn outcome(&self) -> Result<()> {
        if let Some(error) = &self.store_error {
            let what = "the store cannot be used: the line above that begins with `fails` says why";
            return Err(Error::new(error.kind(), what));
        }
        let works = |name: &str| {
            let is_usable = |status| matches!(status, CheckStatus::Works | CheckStatus::Limited);
            self.checks.iter().any(|check| check.name == name && is_usable(check.status))
        };
        if works("mount") || works("run-at") {
            return Ok(());
        }
        let what = "unmodified programs cannot use Esker here, neither in a mount nor by `esker run \
                    --at`: the lines above say what to ask the administrator for";
        Err(Error::new(Kind::Unsupported, what))
    }
}

/// The ways that work here.
pub fn machine_ways() -> MachineWays {
    let way = |check: MachineCheck| match check.status {
        CheckStatus::Fails => Err(check.explanation()),
        _ => Ok(()),
    };
    MachineWays {
        mount: way(mount_checks::mount_check()),
        allows_others: mount_checks::may_allow_others(),
        run_at: way(run_at_check()),
        mpi_io: match mpi_library_path() {
            Some(_) => Ok(()),
            None => Err("the library libesker_mpiio.so is not in $HOME/esker/lib or \
                         $LD_LIBRARY_PATH: build it with the mpicc of the program's MPI \
                         (guide/mpi-io.md)"
                .into()),
        },
    }
}

/// Whether mounts work and, if so, for whom and how.
fn checks_of_mounts() -> Vec<MachineCheck> {
    let mount = mount_checks::mount_check();
    let (users, rings) = match mount.status {
        CheckStatus::Fails => ["mount-users", "mount-rings"].map(mount_checks::unchecked).into(),
        _ => (mount_checks::mount_users_check(), mount_checks::mount_rings_check()),
    };
    vec![mount, users, rings]
}

/// Runs a small program that sees files of a namespace in memory.
fn run_at_check() -> MachineCheck {
    match esker_trap::try_program(&std::env::temp_dir(), Arc::new(SystemClock)) {
        Ok(()) => {
            let finding = "`esker run --at` works for this user; programs gain no privileges in it \
                           (no_new_privs), so `sudo` does not work";
            MachineCheck::new("run-at", CheckStatus::Works, finding)
        }
        Err(error) if !may_write(&std::env::temp_dir()) => {
            MachineCheck::failed("run-at", &error).advise(TEMPORARY_DIRECTORY)
        }
        Err(error) => MachineCheck::failed("run-at", &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(
        mount: CheckStatus,
        run_at: CheckStatus,
        store_error: Option<Error>,
    ) -> MachineReport {
        let checks =
            vec![MachineCheck::new("mount", mount, ""), MachineCheck::new("run-at", run_at, "")];
        MachineReport { checks, store_error }
    }

    #[test]
    fn one_way_and_a_good_store_are_enough() {
        use CheckStatus::{Fails, Limited, Works};
        for (mount, run_at, store, kind) in [
            (Works, Works, None, None),
            (Limited, Fails, None, None),
            (Fails, Works, None, None),
            (Fails, Fails, None, Some(Kind::Unsupported)),
            (Works, Works, Some(Kind::NotFound), Some(Kind::NotFound)),
            (Fails, Fails, Some(Kind::Unavailable), Some(Kind::Unavailable)),
        ] {
            let error = store.map(|kind| Error::new(kind, "a store"));
            let outcome = report(mount, run_at, error).outcome();
            assert_eq!(outcome.err().map(|error| error.kind()), kind);
        }
    }
}
