// SPDX-License-Identifier: Apache-2.0
//! Tests of the ways: each kind of program on each kind of machine.

use super::*;

const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

fn works() -> MachineWays {
    MachineWays { mount: Ok(()), run_at: Ok(()) }
}

fn only_mount() -> MachineWays {
    MachineWays { run_at: Err("no seccomp".into()), ..works() }
}

fn only_run_at() -> MachineWays {
    MachineWays { mount: Err("no /dev/fuse".into()), ..works() }
}

fn nothing() -> MachineWays {
    MachineWays { mount: Err("no /dev/fuse".into()), run_at: Err("no seccomp".into()) }
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
    let mut privileged = dynamic(&["libc.so.6"], &[]);
    privileged.privileges.push("set-user-id of user 0".into());
    for (needing, word) in [
        (privileged, "no_new_privs"),
        (foreign("32-bit x86", true), "32-bit x86"),
        (foreign("aarch64", false), "binfmt_misc"),
        (program(ProgramContent::Unreadable), "not read it"),
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
fn mpi_io_needs_its_library_alone() {
    for machine in [works(), nothing()] {
        let calls = dynamic(&["libmpi.so.40"], &["MPI_File_open"]);
        let found = ProgramWays::decide(&calls, None, &machine);
        assert_eq!(words(&found), ["mpi-io"]);
        assert!(said(&found).contains("it calls MPI_File_open"), "{}", said(&found));
        let library = dynamic(&["libpnetcdf.so.4", "libmpi.so.40"], &[]);
        assert_eq!(words(&ProgramWays::decide(&library, None, &machine)), ["mpi-io"]);
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
    let srun = JobLauncher { name: "srun", uses_daemons: true };
    let found = ProgramWays::decide(&ordinary, Some(srun), &only_run_at());
    assert_eq!(words(&found), ["library"]);
    assert!(found.missing[0].contains("srun can start one `esker run --at`"));
}

#[test]
fn functions_that_differ_are_named() {
    let watches = dynamic(&["libc.so.6"], &["inotify_add_watch"]);
    let found = ProgramWays::decide(&watches, None, &works());
    assert_eq!(found.differences.len(), 2, "{:?}", found.differences);
    assert!(found.differences[0].contains("O_SYNC") && found.differences[1].contains("inotify"));
}
