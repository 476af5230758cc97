// SPDX-License-Identifier: Apache-2.0
//! Recordings: calls of real programs, as the recorder and as strace have them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use esker_advisor::trace::recording::{RecordedFiles, RecordingSummary, import_recording};
use esker_advisor::trace::strace::{StraceOptions, import_strace};
use esker_advisor::trace::{TraceOperation, TraceRecord};
use esker_base::clock::SystemClock;
use esker_capture::CallRecorder;

use crate::trace_files::read;

/// A call, as tests compare it: that an open succeeded, but not its descriptor.
type Call = (TraceOperation, u64, u64, i64);

/// The calls on each file.
type Calls = BTreeMap<String, Vec<Call>>;

fn shell(dir: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(dir);
    command
}

/// The calls of a trace on the files below `dir`, of the operations in which tracers agree.
fn calls(dir: &Path, trace: &[u8]) -> (Calls, Vec<TraceRecord>) {
    let (records, paths) = read(trace).expect("a trace");
    let mut calls = Calls::new();
    let path_of = |record: &TraceRecord| {
        let path = &paths[record.file.0 as usize];
        without_parents(path.strip_prefix(&dir.display().to_string()).expect("selected"))
    };
    for record in &records {
        // The C library stats and lists files for its own purposes.
        if matches!(record.operation, TraceOperation::Stat | TraceOperation::List) {
            continue;
        }
        let is_open = matches!(record.operation, TraceOperation::Open | TraceOperation::Create);
        let result = if is_open { record.result.min(0) } else { record.result };
        // The position of a failed call means nothing.
        let offset = if record.result < 0 { 0 } else { record.offset };
        let call = (record.operation, offset, record.bytes, result);
        calls.entry(path_of(record)).or_default().push(call);
    }
    // The C library opens and closes directories for itself, and changes modes by other names.
    let of_directories =
        [TraceOperation::MakeDirectory, TraceOperation::RemoveDirectory, TraceOperation::List];
    let directories = records.iter().filter(|record| of_directories.contains(&record.operation));
    for record in directories {
        if let Some(calls) = calls.get_mut(&path_of(record)) {
            let own = [TraceOperation::Open, TraceOperation::Close, TraceOperation::SetAttributes];
            calls.retain(|call| !own.contains(&call.0));
        }
    }
    calls.retain(|_, calls| !calls.is_empty());
    (calls, records)
}

/// The path without `..`, which leads out of no symbolic link here.
fn without_parents(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.iter().map(|part| format!("/{part}")).collect()
}

/// Runs `script` and records it.
fn record(dir: &Path, script: &str) -> (Calls, Vec<TraceRecord>, RecordingSummary) {
    let recorder = CallRecorder::begin(&std::env::temp_dir(), &SystemClock).expect("a recorder");
    let (name, value) = recorder.variable();
    let status = shell(dir, script).env(name, value).status().expect("a shell");
    assert!(status.success(), "{script}");
    let log = recorder.end().expect("a log");
    let selected = [dir.as_os_str().as_encoded_bytes().to_vec()];
    let files = RecordedFiles { paths: &selected, outputs: &[] };
    let (trace, summary) = import_recording(&log, "trace", Vec::new(), files).expect("a recording");
    let (calls, records) = calls(dir, &trace);
    (calls, records, summary)
}

/// Runs `script` below strace; `None` where there is none, or the machine lets nobody trace.
fn trace(dir: &Path, script: &str) -> Option<Calls> {
    let probe = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    probe.ok().filter(std::process::ExitStatus::success)?;
    let log = dir.with_extension("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-ttt", "-T", "-y", "-s", "0", "-o"]).arg(&log);
    let status = command.args(["sh", "-c", script]).current_dir(dir).status().ok()?;
    assert!(status.success(), "{script}");
    let selected = StraceOptions { paths: vec![dir.as_os_str().as_encoded_bytes().to_vec()] };
    let log = fs::read(&log).expect("a log");
    let (trace, _) = import_strace(&log[..], "log", Vec::new(), &selected).expect("a log");
    Some(calls(dir, &trace).0)
}

/// The interpreter itself, and not a script that finds it.
fn python() -> String {
    let mut command = Command::new("python3");
    let found = command.args(["-c", "import sys; print(sys.executable, end=str())"]).output();
    String::from_utf8(found.expect("Python").stdout).expect("a path")
}

/// A directory without symbolic links on its path.
fn directory() -> (tempfile::TempDir, std::path::PathBuf) {
    let temporary = tempfile::tempdir().expect("a directory");
    let path = temporary.path().canonicalize().expect("it is there").join("work");
    fs::create_dir(&path).expect("made");
    (temporary, path)
}

/// Compares the calls of `script` with those of strace.
fn assert_same(script: &str) {
    let (_recorded, dir) = directory();
    let (found, _, summary) = record(&dir, script);
    assert_eq!((summary.import.incomplete, summary.without_streams), (0, 0), "{script}");
    let (_traced, dir) = directory();
    let Some(expected) = trace(&dir, script) else {
        eprintln!("skipped: strace does not work here");
        return;
    };
    let files = |calls: &Calls| calls.keys().cloned().collect::<Vec<_>>();
    assert_eq!(files(&found), files(&expected), "{script}");
    for (path, expected) in expected {
        assert_eq!(found[&path], expected, "{path} of {script}");
    }
}

#[test]
fn blocks_of_dd_are_those_of_strace() {
    assert_same(
        "dd if=/dev/zero of=a bs=64k count=4 conv=fsync 2>&1
        dd if=a of=b bs=4k skip=1 count=3 seek=2 conv=notrunc 2>&1
        dd if=a of=b bs=1k count=2 oflag=append conv=notrunc 2>&1",
    );
}

#[test]
fn trees_are_packed_copied_moved_and_removed_as_in_strace() {
    assert_same("mkdir -p tree/below y; echo one >tree/a; echo two >tree/below/b
        tar cf x.tar tree; tar xf x.tar -C y; ln -s a tree/link; cp -r tree copy; mv copy moved; mv moved/a y/a2
        cat <tree/a >>tree/below/b; truncate -s 100 tree/a; chmod 600 tree/a; rm -r moved; ln tree/a hard");
}

/// Streams write and read in blocks of their own, wherever the program's calls end.
#[test]
fn streams_are_read_and_written_as_in_strace() {
    let program = r#"
        #include <stdio.h>
        #include <wchar.h>
        int main(void) {
            FILE *file = fopen("lines", "w+");
            for (int line = 0; line < 3000; line++) fprintf(file, "line %d\n", line);
            fseek(file, 100, SEEK_SET);
            char text[70000] = "";
            fgets(text, 100, file);
            fwrite(text, 1, sizeof text, file);
            rewind(file);
            while (fread(text, 1, 1000, file) == 1000) {}
            fclose(file);
            file = fopen("more", "a");
            fputs("more", file);
            fclose(file);
            file = fopen("wide", "w");
            fputwc(L'x', file);
            fclose(file);
            fopen("absent", "r");
            return remove("more");
        }"#;
    let (_temporary, dir) = directory();
    assert_same(&built(&dir, program).display().to_string());
}

/// The program `source`.
fn built(dir: &Path, source: &str) -> std::path::PathBuf {
    let (file, built) = (dir.join("source.c"), dir.join("built"));
    fs::write(&file, source).expect("written");
    let compiled =
        Command::new("cc").args(["-w", "-o"]).arg(&built).arg(&file).arg("-ldl").status();
    assert!(compiled.expect("a compiler").success());
    built
}

/// Symptom: programs failed or crashed while they were recorded. Cause: the library read what they passed before the
/// kernel had refused it, used 4 KiB of their stacks, and lost what `dlerror` returns. Fix: it reads names after
/// the call, has the kernel write paths into the log, and seeks functions before `main`.
#[test]
fn programs_do_not_notice_that_they_are_recorded() {
    let program = include_str!("data/unnoticed.c");
    let (_temporary, at) = directory();
    let built = built(&at, program).display().to_string();
    let script = format!("{built} >output");
    let (_alone, alone) = directory();
    assert!(shell(&alone, &script).status().expect("a shell").success());
    let (_recorded, dir) = directory();
    let (found, _, summary) = record(&dir, &script);
    let output = |dir: &Path| fs::read_to_string(dir.join("output")).expect("text");
    assert_eq!(output(&dir), output(&alone));
    // Calls whose names are nowhere, the removal of the working directory, and those in it afterwards.
    assert_eq!(summary.import.incomplete, 109);
    let writes: Vec<_> = found["/data"]
        .iter()
        .filter(|call| call.0 == TraceOperation::Write && call.3 > 0)
        .collect();
    use TraceOperation::{Open, Read, Write};
    assert_eq!(writes, [&(Write, 0, 6, 6), &(Write, 6, 5, 5), &(Write, 11, 8, 8)]);
    assert!(
        found["/data"].contains(&(Read, 3, 4, 4)) && found["/sent"].contains(&(Write, 0, 4, 4))
    );
    assert!(found["/tree/leaf"].contains(&(Open, 0, 0, 0)));
    assert!(
        found.iter().any(|(path, calls)| path.starts_with("/#") && calls[0] == (Write, 0, 7, 7))
    );
}

#[test]
fn descriptors_are_shared_duplicated_and_inherited_as_in_strace() {
    assert_same(&format!(
        r#"{} -c '
import os, sqlite3, subprocess, threading
file = open("data", "wb", buffering=0)
file.write(b"x" * 1000)
copy = os.dup(file.fileno())
os.write(copy, b"y" * 10)
os.lseek(copy, 5, os.SEEK_SET)
file.write(b"z")
subprocess.run(["sh", "-c", "echo inherited"], stdout=file)
os.pwritev(copy, [b"one", b"two"], 2000)
if os.fork() == 0:
    os.write(copy, b"child")
    os._exit(0)
os.wait()
os.close(copy)
file.close()
# Another file gets the descriptor.
other = os.open("other", os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(other, b"appended")
os.dup2(os.open("data", os.O_RDONLY), other)
os.read(other, 100)
os.preadv(other, [bytearray(10), bytearray(20)], 50)
with open("sent", "wb") as sent:
    os.sendfile(sent.fileno(), other, 10, 500)
    os.copy_file_range(other, sent.fileno(), 100, None, 0)
os.makedirs("deep/er")
os.chdir("deep")
os.rename("er", "../er")
with open("../er/relative", "w") as relative:
    relative.write("text")
directory = os.open("..", os.O_RDONLY)
os.open("er/relative", os.O_RDONLY, dir_fd=directory)
os.unlink("er/relative", dir_fd=directory)
os.rmdir("../er")
database = sqlite3.connect("../base")
database.execute("create table t (x)")
database.executemany("insert into t values (?)", [(n,) for n in range(2000)])
database.commit()
def work():
    with open("thread", "wb") as thread:
        thread.write(b"t" * 20000)
thread = threading.Thread(target=work)
thread.start()
thread.join()
'"#,
        python()
    ));
}

/// A process that was killed has its calls in the trace, and one that executes another program goes on.
#[test]
fn killed_and_executed_programs_are_recorded() {
    let (_temporary, dir) = directory();
    let script = format!(
        "{} -c 'import os; os.write(os.open(\"second\", 65, 0o600), b\"two\"); os.kill(os.getpid(), 9)' || \
         exec dd if=second of=third status=none",
        python()
    );
    let (found, records, summary) = record(&dir, &script);
    assert_eq!(found["/second"][1], (TraceOperation::Write, 0, 3, 3));
    assert!(found["/third"].contains(&(TraceOperation::Write, 0, 3, 3)));
    assert_eq!(
        (summary.processes, summary.import.ranks, summary.import.transferring_ranks),
        (3, 2, 2)
    );
    let ranks: Vec<u32> = records.iter().map(|record| record.rank).collect();
    assert!(ranks.starts_with(&[0]) && ranks.contains(&1), "{ranks:?}");
}

/// Ranks have the numbers that whatever started them gave; helpers of a rank come after all.
#[test]
fn ranks_are_those_of_the_job() {
    let (_temporary, dir) = directory();
    let (_, records, summary) = record(
        &dir,
        "for rank in 3 1; do
            OMPI_COMM_WORLD_RANK=$rank sh -c 'test -e ./x
                dd if=/dev/zero of=$OMPI_COMM_WORLD_RANK count=1 status=none; true'
        done
        PMI_RANK=0 dd if=1 of=zero status=none",
    );
    let mut ranks: Vec<u32> = records.iter().map(|record| record.rank).collect();
    ranks.dedup();
    assert_eq!(ranks, [4, 5, 3, 6, 1, 0], "{records:?}");
    assert_eq!(summary.import.ranks, 6);
}

/// Threads of one process share its rank, and their records are in the order of their beginnings.
#[test]
fn threads_write_one_log() {
    let (_temporary, dir) = directory();
    let script = "-c '
import os, threading
file = os.open(\"data\", os.O_RDWR | os.O_CREAT)
def work(number):
    for index in range(5000):
        os.pwrite(file, b\"x\" * 8, 8 * (5000 * number + index))
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
'";
    let (found, records, summary) = record(&dir, &format!("{} {script}", python()));
    let mut offsets: Vec<u64> = found["/data"]
        .iter()
        .filter(|call| call.0 == TraceOperation::Write && call.3 == 8)
        .map(|call| call.1)
        .collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..20_000).map(|index| 8 * index).collect::<Vec<_>>());
    assert_eq!(summary.import.transferring_ranks, 1);
    let writes = || records.iter().filter(|record| record.operation == TraceOperation::Write);
    let threads: BTreeSet<u32> = writes().map(|record| record.thread).collect();
    assert_eq!(threads.len(), 4);
    assert!(writes().is_sorted_by_key(|record| record.begin_ns));
    assert!(records.iter().all(|record| record.begin_ns <= record.end_ns));
}
