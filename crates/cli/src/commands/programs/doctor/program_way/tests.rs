// SPDX-License-Identifier: Apache-2.0
//! Tests of the ways: each kind of program on each kind of machine.

use super::*;
use crate::commands::programs::doctor::gained_privilege::GainedPrivilege;

const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

fn works() -> MachineWays {
    MachineWays { mount: Ok(()), allows_others: false, run_at: Ok(()), mpi_io: Ok(()) }
}

fn only_mount() -> MachineWays {
    MachineWays { run_at: Err("no seccomp".into()), ..works() }
}

fn only_run_at() -> MachineWays {
    MachineWays { mount: Err("no /dev/fuse".into()), ..works() }
}

fn nothing() -> MachineWays {
    MachineWays { run_at: Err("no seccomp".into()), ..only_run_at() }
}

fn program(content: ProgramContent) -> ProgramFile {
    let path = "/bin/program".into();
    ProgramFile { path, interpreters: Vec::new(), content, privileges: Vec::new() }
}

fn native(program_facts: NativeProgram) -> ProgramFile {
    program(ProgramContent::Elf(ElfFile::Native(program_facts)))
}

fn dynamic(libraries: &[&str], symbols: &[&'static str]) -> ProgramFile {
    native(NativeProgram {
        linker: Some(LINKER.into()),
        libraries: libraries.iter().map(|name| (*name).to_owned()).collect(),
        symbols: symbols.iter().copied().collect(),
        is_go: false,
    })
}

fn foreign(name: &str, is_mode_of_ours: bool) -> ProgramFile {
    let machine = ForeignMachine { name: name.into(), is_mode_of_ours };
    program(ProgramContent::Elf(ElfFile::Foreign(machine)))
}

fn words(found: &ProgramWays) -> Vec<&'static str> {
    found.ways.iter().map(|(way, _)| way.word()).collect()
}

/// Everything that is said, on one line.
fn said(found: &ProgramWays) -> String {
    let reasons = found.ways.iter().flat_map(|(_, reasons)| reasons);
    let all: Vec<&str> = reasons.chain(&found.missing).map(String::as_str).collect();
    all.join(" | ")
}

#[test]
fn an_ordinary_program_takes_what_works() {
    let ordinary = dynamic(&["libc.so.6"], &[]);
    for (machine, ways, missing) in [
        (works(), &["run-at", "mount"][..], &[][..]),
        (only_run_at(), &["run-at"], &["mounts do not work here: no /dev/fuse"]),
        (only_mount(), &["mount"], &["`esker run --at` does not work here: no seccomp"]),
        (
            nothing(),
            &["library"],
            &[
                "`esker run --at` does not work here: no seccomp",
                "mounts do not work here: no /dev/fuse",
            ],
        ),
    ] {
        let found = ProgramWays::decide(&ordinary, None, &machine);
        assert_eq!(words(&found), ways);
        assert_eq!(found.missing, missing);
        assert_eq!(found.differences.is_empty(), !words(&found).contains(&"run-at"));
    }
}

#[test]
fn a_static_program_and_one_in_go_say_so() {
    for (is_go, word) in [(false, "linked statically"), (true, "written in Go")] {
        let found = native(NativeProgram { is_go, ..NativeProgram::default() });
        let found = ProgramWays::decide(&found, None, &works());
        assert_eq!(words(&found), ["run-at", "mount"]);
        assert!(said(&found).contains(word), "{}", said(&found));
    }
}

#[test]
fn what_run_at_cannot_do_needs_a_mount() {
    for (needing, word) in [
        (foreign("32-bit x86", true), "32-bit x86"),
        (foreign("aarch64", false), "binfmt_misc"),
        (program(ProgramContent::Unreadable), "error while loading shared libraries"),
    ] {
        let found = ProgramWays::decide(&needing, None, &works());
        assert_eq!(words(&found), ["mount"]);
        assert!(said(&found).contains(word), "{}", said(&found));
        let found = ProgramWays::decide(&needing, None, &only_run_at());
        assert_eq!((words(&found), found.missing.len()), (vec!["library"], 2));
        assert!(found.missing[0].contains(word) && found.missing[1].contains("/dev/fuse"));
        assert!(found.differences.is_empty());
    }
}

#[test]
fn mpi_io_needs_its_library_or_one_node() {
    let calls = dynamic(&["libmpi.so.40"], &["MPI_File_open"]);
    let library = dynamic(&["libpnetcdf.so.4", "libmpi.so.40"], &[]);
    let missing = |machine| MachineWays { mpi_io: Err("not built".into()), ..machine };
    let srun = Some(JobLauncher { name: "srun", uses_daemons: true });
    for (machine, launcher, ways) in [
        (works(), None, &["mpi-io", "mount", "run-at"][..]),
        (nothing(), None, &["mpi-io"]),
        (works(), srun, &["mpi-io"]),
        (missing(works()), None, &["mount", "run-at"]),
        (missing(works()), srun, &["library"]),
        (missing(nothing()), None, &["library"]),
    ] {
        let found = ProgramWays::decide(&calls, launcher, &machine);
        assert_eq!(words(&found), ways);
        let has_library = machine.mpi_io.is_ok();
        assert!(!has_library || said(&found).contains("it calls MPI_File_open"), "{found:?}");
        assert_eq!(found.missing.concat().contains("not built"), !has_library, "{found:?}");
        assert_eq!(words(&ProgramWays::decide(&library, launcher, &machine)), ways);
    }
}

#[test]
fn ranks_see_a_mount_or_run_on_one_node() {
    let mpi = dynamic(&["libmpi.so.40"], &[]);
    let mpirun = JobLauncher { name: "mpirun", uses_daemons: false };
    let ordinary = dynamic(&["libc.so.6"], &[]);
    for (program, launcher) in [(&mpi, None), (&mpi, Some(mpirun)), (&ordinary, Some(mpirun))] {
        let found = ProgramWays::decide(program, launcher, &works());
        assert_eq!(words(&found), ["mount", "run-at"]);
        assert!(said(&found).contains("on several nodes"), "{}", said(&found));
        let found = ProgramWays::decide(program, launcher, &only_run_at());
        assert_eq!(words(&found), ["run-at"]);
        assert!(said(&found).contains("on this node"), "{}", said(&found));
    }
}

/// Symptom: programs that `srun` starts had no way where mounts do not work.
/// Cause: their ranks are below no `esker run --at` of the caller.
/// Fix: `srun` starts one `esker run --at` on each node.
#[test]
fn daemons_start_a_process_on_each_node() {
    let ordinary = dynamic(&["libc.so.6"], &[]);
    let srun = Some(JobLauncher { name: "srun", uses_daemons: true });
    for (machine, ways) in [
        (works(), &["run-at", "mount"][..]),
        (only_run_at(), &["run-at"]),
        (only_mount(), &["mount"]),
        (nothing(), &["library"]),
    ] {
        let found = ProgramWays::decide(&ordinary, srun, &machine);
        assert_eq!(words(&found), ways);
        assert!(said(&found).contains("on each node") || !ways.contains(&"run-at"));
        assert_eq!(said(&found).contains("srun -N1 -n1 esker doctor"), !found.missing.is_empty());
    }
    let mpi = dynamic(&["libmpi.so.40"], &[]);
    let found = ProgramWays::decide(&mpi, srun, &works());
    assert_eq!(words(&found), ["mount"]);
    assert!(said(&found).contains("`srun` must start itself"), "{}", said(&found));
}

/// Symptom: a set-user-id program that was sent to a mount got "Permission denied" there.
/// Cause: after its change of user the kernel denies it a mount of its caller.
/// Fix: such programs get a mount that admits others, or run without their privilege.
#[test]
fn programs_that_change_user_need_a_mount_for_others() {
    let open = MachineWays { allows_others: true, ..works() };
    let mut privileged = dynamic(&["libc.so.6"], &[]);
    for privilege in [GainedPrivilege::SetUserId(0), GainedPrivilege::SetGroupId(42)] {
        privileged.privileges = vec![privilege];
        let found = ProgramWays::decide(&privileged, None, &open);
        assert_eq!(words(&found), ["mount", "run-at"]);
        assert!(found.ways[0].1[0].contains("--allow-other"), "{}", said(&found));
        assert!(found.ways[1].1[0].contains("without its privilege"), "{}", said(&found));
        let found = ProgramWays::decide(&privileged, None, &works());
        assert_eq!((words(&found), found.missing.len()), (vec!["run-at"], 1));
        assert!(found.missing[0].contains("user_allow_other"), "{}", said(&found));
        // Nobody may read it, so only a mount would do.
        let unreadable = ProgramFile { content: ProgramContent::Unreadable, ..privileged.clone() };
        assert_eq!(words(&ProgramWays::decide(&unreadable, None, &open)), ["mount"]);
        assert_eq!(words(&ProgramWays::decide(&unreadable, None, &works())), ["library"]);
    }
    privileged.privileges = vec![GainedPrivilege::Capabilities];
    let found = ProgramWays::decide(&privileged, None, &works());
    assert_eq!(words(&found), ["mount", "run-at"]);
    assert!(found.ways[0].1[0].starts_with("it has file capabilities"), "{}", said(&found));
    assert!(!said(&found).contains("--allow-other"), "{}", said(&found));
}

#[test]
fn a_mount_is_for_programs_of_its_user() {
    let found = ProgramWays::decide(&dynamic(&["libc.so.6"], &[]), None, &works());
    assert!(said(&found).contains("any program of yours"), "{}", said(&found));
}

#[test]
fn functions_that_differ_are_named() {
    let watches = dynamic(&["libc.so.6"], &["inotify_add_watch"]);
    let found = ProgramWays::decide(&watches, None, &works());
    assert_eq!(found.differences.len(), 2, "{:?}", found.differences);
    assert!(found.differences[0].contains("O_SYNC") && found.differences[1].contains("inotify"));
}
