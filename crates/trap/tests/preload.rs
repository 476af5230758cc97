// SPDX-License-Identifier: Apache-2.0
//! Preload: the library that makes calls about files outside of the namespace fast gives the same
//! results as the supervisor.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::shown::{can_show, of, session, shell, show_preloading, text_of, with_library};

/// Makes all calls of the library, `$@` being paths.
const CALLS: &str = include_str!("preload_calls.c");

/// Compiles `source` in `directory`; returns the program.
fn compile(directory: &TempDir, source: &str) -> PathBuf {
    let program = directory.path().join("program");
    fs::write(directory.path().join("program.c"), source).expect("write");
    let compiled = Command::new("cc")
        .args(["-O0", "-w", "-o", "program", "program.c", "-ldl"])
        .current_dir(directory.path())
        .output();
    text_of(&compiled.expect("a compiler"), "cc");
    program
}

/// The output of `program` with arguments in the directory `at`.
fn output(program: &Path, paths: &[String], at: &Path, library: Option<&Path>) -> String {
    let mut command = Command::new(program);
    let input = fs::File::open("/etc/passwd").expect("open");
    command.args(paths).current_dir(at).stdin(input);
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    text_of(&command.output().expect("run"), "the program")
}

/// Makes files and links below the working directory, which is in the namespace.
const INSIDE: &str = "
    mkdir -p sub/deep; echo in > f; echo sub > sub/f; ln -s f link; ln -s $OUTSIDE/f out
    ln -s nowhere dangling; cp /bin/true true; chmod 600 f";
/// Makes files and links outside.
const OUTSIDE: &str = "
    mkdir -p $OUTSIDE/d/e; cd $OUTSIDE; echo out > f; echo d > d/f; ln -s $INSIDE/f in
    ln -s $INSIDE in-dir; ln -s f near; ln -s d/e dir; ln -s nothing broken; ln -s loop loop";
/// Paths from the outer directory.
const NAMES_OUTSIDE: &[&str] = &[
    "f",
    "none",
    "d",
    "d/f",
    "d/none",
    "f/x",
    "in",
    "in-dir",
    "in-dir/f",
    "in-dir/none",
    "near",
    "dir/../f",
    "dir/../../f",
    "broken",
    "loop",
    "d/../f",
    "./f",
    "d//f",
    "d/",
    "f/",
    "in-dir/sub/../f",
];
/// Paths from the place.
const NAMES_INSIDE: &[&str] = &[
    "",
    "f",
    "none",
    "sub",
    "sub/f",
    "link",
    "out",
    "dangling",
    "sub/../f",
    "sub/../../outside/f",
    "true",
];
/// Other paths.
const PATHS: &[&str] = &[
    "/",
    "//usr",
    "/usr/../etc/passwd",
    "/proc/self/cwd/f",
    "/proc/self/fd/0",
    "/proc/self/exe",
    "/dev/null",
    ".",
    "..",
    "../outside/f",
    "../../..",
    "../place/sub/f",
];

/// Returns the lines of `one` that `other` lacks.
fn only(one: &str, other: &str) -> Vec<String> {
    let lines = one.lines().filter(|line| !other.lines().any(|known| known == *line));
    lines.map(str::to_owned).collect()
}

/// Files outside and inside, links between them both ways, and all ways to write their paths.
#[test]
fn calls_return_the_same_with_the_library() {
    if !can_show() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let program = compile(&scratch, CALLS);
    let outside = scratch.path().join("outside");
    let outside = outside.to_str().expect("text");
    let done = show_preloading(scratch.path(), of(&session()), true, |place| {
        let inside = place.to_str().expect("text");
        let places = format!("OUTSIDE={outside} INSIDE={inside}");
        shell(place, &format!("{places}; {INSIDE}; {OUTSIDE}"));
        let at = |directory: &str, names: &[&str]| -> Vec<String> {
            names.iter().map(|name| format!("{directory}/{name}")).collect()
        };
        let mut paths = [at(outside, NAMES_OUTSIDE), at(inside, NAMES_INSIDE)].concat();
        paths.extend([NAMES_OUTSIDE, NAMES_INSIDE, PATHS].concat().iter().map(ToString::to_string));
        paths.extend(["x/".repeat(3000), "y".repeat(300)]);
        for at in [outside, inside, &format!("{inside}/sub"), "/"] {
            let run = |library: Option<&Path>| output(&program, &paths, Path::new(at), library);
            let (without, with) = (run(None), with_library(|library| run(Some(library))));
            let differing = (only(&without, &with), only(&with, &without));
            assert!(without == with, "in {at}: without and with: {differing:#?}");
            assert!(without.lines().count() > 20 * paths.len(), "{without}");
        }
    });
    done.expect("show");
}

/// An open that a signal interrupts is not repeated, and a handler that has a small stack does not
/// write beyond it.
#[test]
fn signals_interrupt_calls() {
    if !can_show() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let source = "
        #include <errno.h>
        #include <fcntl.h>
        #include <signal.h>
        #include <stdio.h>
        #include <sys/stat.h>
        #include <unistd.h>
        static char stack[3 * 8192];
        static void handle(int signal) { struct stat found; stat(\"/etc/passwd\", &found); }
        int main(void) {
            stack_t small = {.ss_sp = stack + 8192, .ss_size = 8192};
            struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
            sigaltstack(&small, 0);
            sigaction(SIGALRM, &action, 0);
            mkfifo(\"pipe\", 0600);
            alarm(1);
            int opened = open(\"pipe\", O_RDONLY), changed = 0;
            for (int at = 0; at < 8192; at++)
                changed += stack[at] != 0;
            printf(\"%d %d %d\", opened, errno == EINTR, changed);
        }";
    let program = compile(&scratch, source);
    let done = show_preloading(scratch.path(), of(&session()), true, |_| {
        let run = |library: Option<&Path>| output(&program, &[], scratch.path(), library);
        assert_eq!(run(None), "-1 1 0");
        assert_eq!(with_library(|library| run(Some(library))), "-1 1 0");
    });
    done.expect("show");
}

/// Calls outside do not wait for the supervisor: they succeed also once it has ended, when all
/// others fail.
#[test]
fn the_kernel_carries_out_calls_outside() {
    if !can_show() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let source = "
        #include <stdio.h>
        #include <fcntl.h>
        #include <unistd.h>
        #include <sys/stat.h>
        int main(int count, char **paths) {
            struct stat found;
            char byte;
            printf(\"ready \");
            fflush(stdout);
            read(0, &byte, 1);
            for (int at = 1; at < count; at++)
                printf(\"%d %d \", stat(paths[at], &found), open(paths[at], O_RDONLY) < 0);
            fflush(stdout);
        }";
    let program = compile(&scratch, source);
    let inside = scratch.path().join("place/f");
    let mut child = None;
    let done = show_preloading(scratch.path(), of(&session()), true, |place| {
        shell(place, "echo in > f");
        with_library(|library| {
            let mut command = Command::new(&program);
            command.env("LD_PRELOAD", library).arg("/etc/passwd").arg(&inside);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut started = command.spawn().expect("start");
            let mut ready = [0; 6];
            let output = started.stdout.as_mut().expect("a pipe");
            output.read_exact(&mut ready).expect("the program is loaded");
            child = Some(started);
        });
    });
    done.expect("show");
    // It reads the end of the file now.
    let output = child.expect("started").wait_with_output().expect("wait");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 0 -1 1 ");
}
