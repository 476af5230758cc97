// SPDX-License-Identifier: Apache-2.0
//! Program way: how a program can use Esker on this machine, by its files and what works here.
//!
//! | the program | the way |
//! |---|---|
//! | opens files by MPI-IO | the library in front of MPI |
//! | gains privileges, or is for another processor | a mount |
//! | cannot be read, or is started by daemons | a mount |
//! | is started by `mpirun` | a mount, or `esker run --at` on one node |
//! | any other | `esker run --at`, or a mount |

use super::called_functions::{differences, mpi_io, mpi_library};
use super::command_words::JobLauncher;
use super::elf_file::{ElfFile, ForeignMachine, NativeProgram, native_name};
use super::program_file::{ProgramContent, ProgramFile};

/// A way to use Esker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramWay {
    /// `esker run --at`.
    RunAt,
    /// `esker mount`.
    Mount,
    /// The library in front of MPI.
    MpiIo,
    /// The libraries for programs whose source can be changed.
    Library,
}

impl ProgramWay {
    /// The word in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::RunAt => "run-at",
            Self::Mount => "mount",
            Self::MpiIo => "mpi-io",
            Self::Library => "library",
        }
    }

    /// The words for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::RunAt => "esker run --at",
            Self::Mount => "a mount",
            Self::MpiIo => "the MPI-IO library",
            Self::Library => "the C library",
        }
    }
}

/// The ways that work on this machine, or why they do not.
#[derive(Clone, Debug)]
pub struct MachineWays {
    /// Mounts.
    pub mount: Result<(), String>,
    /// `esker run --at`.
    pub run_at: Result<(), String>,
}

/// The ways for a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramWays {
    /// The ways, at least one, the best one first, and the reasons for each.
    pub ways: Vec<(ProgramWay, Vec<String>)>,
    /// What is different for this program under `esker run --at`.
    pub differences: Vec<String>,
    /// What does not work here, and what to ask the administrator for.
    pub missing: Vec<String>,
}

impl ProgramWays {
    /// Decides on the ways for `program`, started by `launcher` if there is one.
    pub fn decide(
        program: &ProgramFile,
        launcher: Option<JobLauncher<'_>>,
        machine: &MachineWays,
    ) -> Self {
        if let Some(native) = native(program)
            && let Some(name) = mpi_io(native)
        {
            let ways = vec![(ProgramWay::MpiIo, reasons_for_mpi_io(program, native, name))];
            return Self { ways, ..Self::default() };
        }
        let needs = needs_of_mount(program, launcher);
        let candidates = if !needs.is_empty() {
            vec![(ProgramWay::Mount, needs)]
        } else if let Some(reason) = reason_of_ranks(program, launcher) {
            vec![
                (ProgramWay::Mount, vec![reason, SEVERAL_NODES.into()]),
                (ProgramWay::RunAt, vec!["it shows files to all ranks on this node".into()]),
            ]
        } else {
            vec![
                (ProgramWay::RunAt, reasons_for_run_at(program)),
                (ProgramWay::Mount, reasons_for_mount()),
            ]
        };
        Self::of_candidates(candidates, program, machine)
    }

    /// Those of the `candidates` that work here.
    fn of_candidates(
        candidates: Vec<(ProgramWay, Vec<String>)>,
        program: &ProgramFile,
        machine: &MachineWays,
    ) -> Self {
        let mut found = Self::default();
        let mut unmet = Vec::new();
        for (way, reasons) in candidates {
            let (works, name) = match way {
                ProgramWay::RunAt => (&machine.run_at, "`esker run --at` does"),
                _ => (&machine.mount, "mounts do"),
            };
            match works {
                Ok(()) => found.ways.push((way, reasons)),
                Err(why) => {
                    unmet.push(reasons.join("; "));
                    found.missing.push(format!("{name} not work here: {why}"));
                }
            }
        }
        if found.ways.is_empty() {
            if let [reasons] = &unmet[..] {
                found.missing.insert(0, format!("only a mount would do: {reasons}"));
            }
            found.ways.push((ProgramWay::Library, vec![CHANGE_IT.into()]));
        }
        if found.ways.iter().any(|(way, _)| *way == ProgramWay::RunAt) {
            found.differences = differences_of(program);
        }
        found
    }
}

const SEVERAL_NODES: &str = "on several nodes, each mounts a part of one job (guide/mount.md, \
                             Jobs on several nodes)";

const CHANGE_IT: &str = "if you can change the program: the libraries for C, C++, Fortran and Rust \
                         need neither a mount nor the kernel's help (guide/c.md, \
                         guide/programs.md)";

/// The facts about a program for this processor.
fn native(program: &ProgramFile) -> Option<&NativeProgram> {
    match &program.content {
        ProgramContent::Elf(ElfFile::Native(native)) => Some(native),
        _ => None,
    }
}

/// Why the program cannot run by `esker run --at`.
fn needs_of_mount(program: &ProgramFile, launcher: Option<JobLauncher<'_>>) -> Vec<String> {
    let mut needs = Vec::new();
    match &program.content {
        ProgramContent::Elf(ElfFile::Foreign(machine)) => needs.push(reason_of_machine(machine)),
        ProgramContent::Unreadable => needs.push(
            "you may run it, but not read it, and such a program sees an empty directory under \
             `esker run --at`"
                .into(),
        ),
        ProgramContent::Elf(ElfFile::Native(_)) | ProgramContent::ShellText => {}
    }
    for privilege in &program.privileges {
        needs.push(format!(
            "it is {privilege}, and programs gain no privileges under `esker run --at` \
             (no_new_privs)"
        ));
    }
    if let Some(JobLauncher { name, uses_daemons: true }) = launcher {
        needs.push(format!(
            "daemons start it for `{name}`, so it would not be below `esker run --at`; but {name} can \
             start one `esker run --at` on each node (guide/unmodified-programs.md, Jobs on several \
             nodes)"
        ));
        needs.push(SEVERAL_NODES.into());
    }
    needs
}

fn reason_of_machine(machine: &ForeignMachine) -> String {
    let ForeignMachine { name, is_mode_of_ours } = machine;
    let native = native_name();
    match is_mode_of_ours {
        true => format!(
            "it is for {name}, and `esker run --at` refuses the system calls of all programs but \
             those for {native}"
        ),
        false => format!(
            "it is for {name}, and this machine is {native}: it runs only in an emulator, if the \
             kernel knows one (binfmt_misc)"
        ),
    }
}

/// Why a launcher starts the program as the ranks of a job, if one does.
fn reason_of_ranks(program: &ProgramFile, launcher: Option<JobLauncher<'_>>) -> Option<String> {
    if let Some(launcher) = launcher {
        let name = launcher.name;
        return Some(format!("`{name}` starts it as ranks, which all see the files of a mount"));
    }
    let library = native(program).and_then(mpi_library)?;
    Some(format!("it is an MPI program ({library}) that opens no file by MPI-IO itself"))
}

fn reasons_for_mpi_io(program: &ProgramFile, native: &NativeProgram, name: &str) -> Vec<String> {
    let what = match name.starts_with("lib") {
        true => format!("it needs {name}, which opens files by MPI-IO"),
        false => format!("it calls {name}"),
    };
    let mut reasons = vec![
        format!("{what}: a library in front of MPI makes these files shared files of Esker"),
        "it works on all nodes, without a mount and without privileges".into(),
    ];
    if !program.privileges.is_empty() || native.is_static() {
        reasons.push("link the library into the program: LD_PRELOAD does not reach it".into());
    }
    reasons
}

fn reasons_for_run_at(program: &ProgramFile) -> Vec<String> {
    let own_calls = match native(program) {
        Some(native) if native.is_go => Some("it is written in Go"),
        Some(native) if native.is_static() => Some("it is linked statically"),
        _ => None,
    };
    let first = match own_calls {
        Some(what) => {
            format!("{what}; `esker run --at` sees its calls, unlike tools with LD_PRELOAD")
        }
        None => "nothing in its files rules it out".into(),
    };
    vec![first, "one command shows the files, and publishes if the program succeeds".into()]
}

fn reasons_for_mount() -> Vec<String> {
    vec![
        "programs may use O_SYNC, O_DSYNC, watches and io_uring, and read parts of large files \
         fast"
            .into(),
        "any program of this machine sees the files, not only those that one command starts".into(),
    ]
}

fn differences_of(program: &ProgramFile) -> Vec<String> {
    let mut found = vec!["open with O_SYNC or O_DSYNC fails (EINVAL)".to_owned()];
    if let Some(native) = native(program) {
        found.extend(differences(native).into_iter().map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests;
