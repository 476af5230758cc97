// SPDX-License-Identifier: Apache-2.0
//! Program way: how a program can use Esker on this machine, by its files and what works here.
//!
//! | the program | the way |
//! |---|---|
//! | opens files by MPI-IO | the library in front of MPI; on one node also the others |
//! | is for another processor, or cannot be read | a mount |
//! | gains privileges | a mount, or `esker run --at` without them |
//! | is started by `mpirun` | a mount, or `esker run --at` on one node |
//! | is started by daemons | `esker run --at` on each node, or a mount on each node |
//! | is an MPI program, and started by daemons | a mount on each node |
//! | any other | `esker run --at`, or a mount |
//!
//! A program that runs as another user or group needs a mount that admits others.

use super::called_functions::{differences, mpi_io, mpi_library};
use super::command_words::JobLauncher;
use super::elf_file::{ElfFile, ForeignMachine, NativeProgram, native_name};
use super::mount_checks::ALLOW_OTHERS;
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
    /// True if mounts may admit users other than the one who mounts.
    pub allows_others: bool,
    /// `esker run --at`.
    pub run_at: Result<(), String>,
    /// The library in front of MPI.
    pub mpi_io: Result<(), String>,
}

/// The ways for a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramWays {
    /// The ways, at least one, the best one first, and the reasons for each.
    pub ways: Vec<(ProgramWay, Vec<String>)>,
    /// The differences that this program meets under `esker run --at`.
    pub differences: Vec<String>,
    /// The ways that do not work here, each with a request to the administrator.
    pub missing: Vec<String>,
}

impl ProgramWays {
    /// Decides on the ways for `program`, started by `launcher` if there is one.
    pub fn decide(
        program: &ProgramFile,
        launcher: Option<JobLauncher<'_>>,
        machine: &MachineWays,
    ) -> Self {
        if let Some(native) = program.native()
            && let Some(name) = mpi_io(native)
        {
            let own = (ProgramWay::MpiIo, reasons_for_mpi_io(program, native, name));
            // Ranks on other nodes would write to other parts.
            let is_on_one_node = launcher.is_none_or(|launcher| !launcher.uses_daemons);
            let others = if is_on_one_node { candidates(program, launcher) } else { Vec::new() };
            let others = others.into_iter().map(|(way, _)| (way, vec![ON_ONE_NODE.into()]));
            let all = std::iter::once(own).chain(others).collect();
            return Self::of_candidates(all, program, machine);
        }
        let candidates = candidates(program, launcher);
        let mut found = Self::of_candidates(candidates, program, machine);
        if launcher.is_some_and(|launcher| launcher.name == "srun") && !found.missing.is_empty() {
            let what = "other nodes may differ: `srun -N1 -n1 esker doctor` says what works on one";
            found.missing.push(what.into());
        }
        found
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
            match obstacle(way, program, machine) {
                None => found.ways.push((way, reasons)),
                Some(obstacle) => {
                    unmet.push((way, reasons.join("; ")));
                    found.missing.push(obstacle);
                }
            }
        }
        if found.ways.is_empty() {
            if let [(way, reasons)] = &unmet[..] {
                found.missing.insert(0, format!("only {} would do: {reasons}", way.title()));
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

const ON_ONE_NODE: &str = "with all ranks on this node, it shows the files to the program and to \
                           MPI as they are, and needs no further library";

const CHANGE_IT: &str = "if you can change the program: the libraries for C, C++, Fortran and Rust \
                         need neither a mount nor the kernel's help (guide/c.md, \
                         guide/programs.md)";

/// The ways for the program on a machine where all work, the best one first.
fn candidates(
    program: &ProgramFile,
    launcher: Option<JobLauncher<'_>>,
) -> Vec<(ProgramWay, Vec<String>)> {
    let daemons = launcher.filter(|launcher| launcher.uses_daemons);
    let mut needs = needs_of_mount(program, daemons);
    if !needs.is_empty() {
        needs.extend(reason_for_privileged_mount(program));
        if daemons.is_some() {
            needs.push(SEVERAL_NODES.into());
        }
        return vec![(ProgramWay::Mount, needs)];
    }
    let mut run_at = Vec::from_iter(reason_for_unprivileged_run(program));
    let mut mount = Vec::from_iter(reason_for_privileged_mount(program));
    let is_privileged = !program.privileges.is_empty();
    let mut is_mount_first = is_privileged;
    if let Some(JobLauncher { name, .. }) = daemons {
        run_at.push(format!(
            "daemons start what `{name}` runs, so it starts one `esker run --at` on each node, which \
             starts the program there (guide/unmodified-programs.md, Jobs on several nodes)"
        ));
        mount.push(format!("the ranks of `{name}` see the mount of their node"));
        mount.push(SEVERAL_NODES.into());
    } else if let Some(reason) = reason_of_ranks(program, launcher) {
        is_mount_first = true;
        mount.extend([reason, SEVERAL_NODES.into()]);
        run_at.push("it shows files to all ranks on this node".into());
    } else if !is_privileged {
        run_at = reasons_for_run_at(program);
        mount = reasons_for_mount();
    }
    let (run_at, mount) = ((ProgramWay::RunAt, run_at), (ProgramWay::Mount, mount));
    if is_mount_first { vec![mount, run_at] } else { vec![run_at, mount] }
}

/// Why `way` does not work on this machine, for this program.
fn obstacle(way: ProgramWay, program: &ProgramFile, machine: &MachineWays) -> Option<String> {
    match way {
        ProgramWay::MpiIo => machine.mpi_io.clone().err(),
        ProgramWay::RunAt => {
            let why = machine.run_at.as_ref().err()?;
            Some(format!("`esker run --at` does not work here: {why}"))
        }
        _ => match &machine.mount {
            Err(why) => Some(format!("mounts do not work here: {why}")),
            Ok(()) if program.changes_user() && !machine.allows_others => Some(format!(
                "{}, and only you can access your mounts: {ALLOW_OTHERS}",
                clauses_of_privileges(program)
            )),
            Ok(()) => None,
        },
    }
}

/// Why the program cannot run by `esker run --at`.
fn needs_of_mount(program: &ProgramFile, daemons: Option<JobLauncher<'_>>) -> Vec<String> {
    let mut needs = Vec::new();
    match &program.content {
        ProgramContent::Elf(ElfFile::Foreign(machine)) => needs.push(reason_of_machine(machine)),
        ProgramContent::Unreadable => needs.push(
            "you may run it, but not read it: under `esker run --at` such a program fails with \
             \"error while loading shared libraries: … Operation not permitted\" or, if it is \
             static, sees an empty directory"
                .into(),
        ),
        ProgramContent::Elf(ElfFile::Native(native)) => {
            if let (Some(library), Some(JobLauncher { name, .. })) = (mpi_library(native), daemons)
            {
                needs.push(format!(
                    "it is an MPI program ({library}), whose ranks `{name}` must start itself"
                ));
            }
        }
        ProgramContent::ShellText => {}
    }
    needs
}

/// The privileges of the program as clauses.
fn clauses_of_privileges(program: &ProgramFile) -> String {
    let clauses: Vec<String> =
        program.privileges.iter().map(|privilege| privilege.clause()).collect();
    clauses.join(", ")
}

/// Why a program that gains privileges takes a mount.
fn reason_for_privileged_mount(program: &ProgramFile) -> Option<String> {
    let clauses = clauses_of_privileges(program);
    let options = match program.changes_user() {
        true => "; `--allow-other` lets it into the mount after its change of user or group",
        false => "",
    };
    (!clauses.is_empty()).then(|| {
        format!(
            "{clauses}, and programs gain no privileges under `esker run --at` (no_new_privs)\
             {options}"
        )
    })
}

/// The privileges that a program lacks under `esker run --at`.
fn reason_for_unprivileged_run(program: &ProgramFile) -> Option<String> {
    let clauses = clauses_of_privileges(program);
    (!clauses.is_empty()).then(|| {
        format!(
            "it runs as you, without its privilege: {clauses}, and programs gain none under `esker \
             run --at` (no_new_privs)"
        )
    })
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
    let library = program.native().and_then(mpi_library)?;
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
    let own_calls = match program.native() {
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
        "any program of yours sees the files, not only those that one command starts".into(),
    ]
}

fn differences_of(program: &ProgramFile) -> Vec<String> {
    let mut found = vec!["open with O_SYNC or O_DSYNC fails (EINVAL)".to_owned()];
    if let Some(native) = program.native() {
        found.extend(differences(native).into_iter().map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests;
