// SPDX-License-Identifier: Apache-2.0
//! `esker advise` as users run it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use esker_base::clock::{Clock, SystemClock};

use crate::esker::Esker;

const STRACE: &[u8] = include_bytes!("../../advisor/tests/data/python.strace");
const DARSHAN: &[u8] = include_bytes!("../../advisor/tests/data/darshan/ior_hdf5.darshan");
const COUNTERS: &[u8] = include_bytes!("../../advisor/tests/data/darshan/macsio.darshan");

#[test]
fn logs_are_imported() {
    let esker = Esker::without_store();
    for (name, bytes) in [("a.strace", STRACE), ("b.darshan", DARSHAN), ("c.darshan", COUNTERS)] {
        std::fs::write(esker.path(name), bytes).expect("written");
    }
    let strace = ["advise", "import", "a.strace", "-o", "a.arrow", "--features", "a.json"];
    let said = esker.ok([&strace[..], &["--path", "/tmp/app"]].concat());
    assert!(
        said.starts_with("a.arrow: ")
            && said.contains(" of 2 ranks, of which 2 read or write; 0 calls"),
        "{said}"
    );
    let said = esker.ok(["advise", "import", "b.darshan", "-o", "b.arrow", "--features", "b.json"]);
    let expected = "4 ranks (4 read or write in the trace), 59 records of reads and writes";
    assert!(said.starts_with(expected), "{said}");
    for (name, processes) in [("a", 2), ("b", 4)] {
        let trace = std::fs::read(esker.path(format!("{name}.arrow"))).expect("a trace");
        assert!(trace.starts_with(b"ARROW1") && trace.ends_with(b"ARROW1"));
        let features = std::fs::read(esker.path(format!("{name}.json"))).expect("features");
        let features: serde_json::Value = serde_json::from_slice(&features).expect("JSON");
        assert_eq!(features["processes"], processes);
    }
    let said = esker.fails(3, ["advise", "import", "c.darshan", "-o", "c.arrow"]);
    assert!(said.contains("DXT_ENABLE_IO_TRACE=1"), "{said}");
    assert!(!esker.path("c.arrow").exists());
    esker.ok(["advise", "import", "c.darshan", "--features", "c.json"]);
    // Symptom: a path that matches nothing gave an empty trace without a word.
    let nothing = ["advise", "import", "a.strace", "-o", "d.arrow", "--path", "/scratch"];
    let said = esker.fails(3, nothing);
    assert!(said.contains("at or below /scratch; most are in ") && said.contains("/tmp/app ("));
    assert!(!esker.path("d.arrow").exists());
    std::fs::write(esker.path("d.strace"), "no log\n").expect("written");
    let said = esker.fails(12, ["advise", "import", "d.strace", "-o", "d.arrow"]);
    assert!(said.contains("d.strace at byte 0: line 1: "), "{said}");
    // The traces of two nodes become one.
    let both = ["advise", "import", "a.arrow", "b.arrow", "-o", "both.arrow"];
    let said = esker.ok(both);
    assert!(said.contains(" of 6 ranks, of which 6 read or write"), "{said}");
    esker.ok(["advise", "verify", "both.arrow"]);
    let said = esker.fails(2, ["advise", "import", "a.strace", "a.strace", "-o", "d.arrow"]);
    assert!(said.contains("import each"), "{said}");
}

/// Programs are traced as they run, and keep their output and their exit code.
#[test]
fn a_program_is_traced() {
    let esker = Esker::without_store();
    let script = "echo out; echo some text >data; cat data >copy; exit 3";
    let trace = ["advise", "trace", "-o", "a.arrow", "--features", "a.json"];
    let command = [&trace[..], &["--", "sh", "-c", script]].concat();
    let output = esker.command(&command).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        said.contains("a.arrow: ") && said.contains(", of which 2 read or write; 0 calls"),
        "{said}"
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    let features = std::fs::read(esker.path("a.json")).expect("features");
    let features: serde_json::Value = serde_json::from_slice(&features).expect("JSON");
    assert_eq!((&features["written_bytes"], &features["read_bytes"]), (&20.into(), &10.into()));
    let said = esker.ok(["advise", "show", "a.arrow", "--to", "a.html"]);
    assert!(esker.path("a.html").exists(), "{said}");
    esker.ok(["advise", "verify", "a.arrow"]);

    // A path is found by the names that lead to it.
    std::os::unix::fs::symlink(".", esker.path("link")).expect("made");
    let selected = ["advise", "trace", "-o", "b.arrow", "--json", "--path", "link/data"];
    let said = esker.ok([&selected[..], &["--", "cat", "data"]].concat());
    assert!(said.contains("\"records\":5,") && said.contains("\"source\":\"recording\""), "{said}");
    // The program has run: a path that matches nothing loses no trace.
    let nothing = ["advise", "trace", "-o", "c.arrow", "--path", "/absent", "--", "cat", "data"];
    let output = esker.command(nothing).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("at or below /absent; most are in ") && said.contains("has all calls"));
    let found = ["advise", "import", "c.arrow", "-o", "c.arrow", "--path"];
    let said = esker.ok([&found[..], &[esker.path("data").to_str().expect("text")]].concat());
    assert!(said.contains("c.arrow: 5 records of 1 rank, of which 1 reads or writes"), "{said}");
    let said = esker.fails(2, ["advise", "trace", "-o", "c.arrow", "--", "--steps"]);
    assert!(said.contains("no option --steps"), "{said}");
    // What cannot be written is found out before the program runs, and a failure leaves what was there.
    for output in ["absent/d.arrow", "."] {
        let before = ["advise", "trace", "-o", output, "--", "touch", "has-run"];
        esker.command(before).output().expect("run");
        assert!(!esker.path("has-run").exists(), "{output}");
    }
    let said = esker.fails(3, ["advise", "trace", "-o", "c.arrow", "--", "./absent"]);
    assert!(said.contains("could not start the program"), "{said}");
    esker.fails(2, ["advise", "trace", "-o", "c.arrow", "--features", "c.arrow", "--", "true"]);
    esker.ok(["advise", "verify", "c.arrow"]);
    let said = esker.fails(2, ["advise", "trace", "--ouput", "c.arrow", "--", "true"]);
    assert!(said.contains("no option --ouput"), "{said}");
}

/// A trace is found where it was asked for, whatever is there, and whatever the program does there.
#[test]
fn traces_are_whole_wherever_they_are_written() {
    let esker = Esker::without_store();
    std::fs::write(esker.path("data"), "some text").expect("written");
    // All names of a file lead to the trace, a link that leads nowhere makes its target, and modes stay.
    std::fs::write(esker.path("first"), "earlier").expect("written");
    std::fs::hard_link(esker.path("first"), esker.path("second")).expect("linked");
    std::os::unix::fs::symlink("target", esker.path("dangling")).expect("made");
    std::fs::write(esker.path("private"), "earlier").expect("written");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(esker.path("private"), private).expect("changed");
    for (output, read) in [("first", "second"), ("dangling", "target"), ("private", "private")] {
        esker.ok(["advise", "trace", "-o", output, "--", "sh", "-c", "ls -A >listed; cat data"]);
        esker.ok(["advise", "verify", read]);
        let listed = std::fs::read_to_string(esker.path("listed")).expect("a listing");
        assert!(!listed.contains(".esker-"), "{listed}");
    }
    assert!(esker.path("dangling").symlink_metadata().expect("it is there").is_symlink());
    let mode = esker.path("private").metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let same = ["advise", "trace", "-o", "first", "--features", "./first", "--", "true"];
    esker.fails(2, same);
    // A trace whose directory the program has removed is whole elsewhere.
    std::fs::create_dir(esker.path("gone")).expect("made");
    let gone =
        ["advise", "trace", "-o", "gone/f.arrow", "--", "sh", "-c", "echo >data; rmdir gone"];
    let said = esker.fails(3, gone);
    let kept = said.split("another name: ").nth(1).and_then(|rest| rest.lines().next());
    let kept = kept.unwrap_or_else(|| panic!("{said}")).to_owned();
    esker.ok(["advise", "verify", &kept]);
    std::fs::remove_file(kept).expect("removed");
    // A path that the program removes selects, too.
    let removed = ["advise", "trace", "-o", "f.arrow", "--path", "new", "--"];
    let script = "mkdir new; echo x >new/f; rm -r new";
    let output = esker.command([&removed[..], &["sh", "-c", script]].concat()).output();
    let said = String::from_utf8_lossy(&output.expect("run").stderr).into_owned();
    assert!(
        said.contains("of which 1 reads or writes") && !said.contains("has all calls"),
        "{said}"
    );
}

/// What cannot be written whole leaves an earlier file as it was, and nothing beside it.
#[test]
fn models_and_pages_replace_files_once_they_are_whole() {
    let esker = Esker::without_store();
    let program = esker.command([""; 0]).get_program().display().to_string();
    for arguments in ["model --simulated --to", "paper --report"] {
        std::fs::write(esker.path("output"), "earlier").expect("written");
        // The shell's limit is one block, beyond which a write fails as on a full disk.
        let script = format!("trap '' XFSZ; ulimit -f 1; exec {program} advise {arguments} output");
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-c", &script]).current_dir(esker.path(".")).output();
        let output = output.expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("write "), "{arguments}: {said}");
        let left = std::fs::read_to_string(esker.path("output")).expect("it is there");
        assert_eq!(left, "earlier", "{arguments}");
        let names = std::fs::read_dir(esker.path(".")).expect("a listing");
        let names = names.map(|entry| entry.expect("an entry").file_name());
        let hidden: Vec<_> =
            names.filter(|name| name.to_string_lossy().contains(".esker-")).collect();
        assert!(hidden.is_empty(), "{hidden:?}");
        esker.ok([vec!["advise"], arguments.split(' ').collect(), vec!["output"]].concat());
        let whole = std::fs::metadata(esker.path("output")).expect("it is there").len();
        assert!(whole > 1024, "{arguments}: {whole} bytes");
    }
}

/// A page can be written to what is open already: a pipe, or the output of the command.
#[test]
fn pages_are_written_to_pipes_and_open_files() {
    let esker = Esker::without_store();
    let program = esker.command([""; 0]).get_program().display().to_string();
    for script in [
        "advise paper --report /dev/stdout | cat >page",
        "advise paper --report /dev/stderr 2>page >text",
        "advise paper --report /proc/self/fd/3 3>page >text",
    ] {
        let script = format!("exec {program} {script}");
        let mut shell = std::process::Command::new("sh");
        let output = shell.args(["-c", &script]).current_dir(esker.path(".")).output();
        let said = String::from_utf8_lossy(&output.expect("run").stderr).into_owned();
        let page = std::fs::read_to_string(esker.path("page")).expect("it is there");
        assert!(page.contains("<svg"), "{script}: {said}");
        std::fs::remove_file(esker.path("page")).expect("removed");
    }
}

/// Messages, and files in memory, are not what a trace is about.
#[test]
fn traces_leave_out_messages_and_maps() {
    let esker = Esker::without_store();
    // Messages of a program are not its data.
    let script = format!(
        "{} advise trace -o e.arrow -- sh -c 'echo message; echo x >data' >messages 2>&1",
        esker.command([""; 0]).get_program().display()
    );
    let mut shell = std::process::Command::new("sh");
    let status = shell.args(["-c", &script]).current_dir(esker.path(".")).status().expect("run");
    let said = std::fs::read_to_string(esker.path("messages")).expect("messages");
    assert!(status.success() && said.contains("of which 1 reads or writes"), "{said}");
    let mapped = ["advise", "trace", "-o", "e.arrow", "--", "python3", "-c"];
    let program = "import mmap; f = open('data'); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)";
    let output = esker.command([&mapped[..], &[program]].concat()).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("1 file was mapped into memory"), "{said}");
    let output =
        esker.command(["advise", "trace", "-o", "d.arrow", "--", "sh", "-c", ">data; kill -9 $$"]);
    let output = { output }.output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), said.contains("ended by signal 9")), (Some(137), true));
    esker.ok(["advise", "verify", "d.arrow"]);
}

/// What cannot be recorded is said, with the way that can.
#[test]
fn traces_say_what_they_lack() {
    let esker = Esker::without_store();
    std::fs::write(esker.path("x.c"), "int main(void) { return 0; }").expect("written");
    let compiled = std::process::Command::new("cc")
        .args(["-static", "-o", "static", "x.c"])
        .current_dir(esker.path("."))
        .status();
    assert!(compiled.expect("a compiler").success());
    std::fs::write(esker.path("a.arrow"), "earlier").expect("written");
    let said = esker.fails(23, ["advise", "trace", "-o", "a.arrow", "--", "./static"]);
    assert!(said.contains("static") && said.contains("esker advise import LOG"), "{said}");
    assert_eq!(std::fs::read(esker.path("a.arrow")).expect("it is there"), b"earlier");

    // Nobody makes room any more: programs wait for that once, and not each for itself.
    let begin_ns = SystemClock.monotonic_ns();
    let script =
        "kill -9 $PPID; dd if=/dev/zero of=data bs=1 count=300000 status=none; for i in 1 2 3; do
        cat data >/dev/null; done; touch over";
    let output =
        esker.command(["advise", "trace", "-o", "c.arrow", "--", "sh", "-c", script]).output();
    assert_eq!(output.expect("run").status.signal(), Some(9));
    while !esker.path("over").exists() {
        let waited = Duration::from_nanos(SystemClock.monotonic_ns() - begin_ns);
        assert!(waited < Duration::from_secs(20), "programs wait for a dead recorder");
        std::thread::sleep(Duration::from_millis(20));
    }

    // A file may not be larger than 20 MiB: the recording ends, and the program does not notice.
    let binary = esker.command([""; 0]).get_program().to_owned();
    let script = format!(
        "ulimit -f 40960; {} advise trace -o b.arrow -- python3 -c '
import os
file = os.open(\"data\", os.O_RDWR | os.O_CREAT)
for index in range(400_000):
    os.pwrite(file, b\"x\", index % 1000)
print(\"all done\")
'",
        binary.display()
    );
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", &script]).current_dir(esker.path(".")).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "all done\n");
    assert!(said.contains("the trace ends early") && said.contains("--spool"), "{said}");
    esker.ok(["advise", "verify", "b.arrow"]);
}

#[test]
fn texts_of_recorder_are_imported() {
    let esker = Esker::without_store();
    std::fs::create_dir(esker.path("_text")).expect("made");
    for rank in [0, 3, 12] {
        let text = format!(
            "0.1 0.2 open 1 0 ( /s/a 0 )\n0.3 0.4 pread 1 0 ( /s/a 0x7f 100 {} )\n",
            rank * 100
        );
        std::fs::write(esker.path(format!("_text/{rank}.txt")), text).expect("written");
    }
    std::fs::write(esker.path("_text/notes"), "other").expect("written");
    let said = esker.ok(["advise", "import", "_text", "-o", "a.arrow", "--features", "a.json"]);
    assert_eq!(
        said,
        "a.arrow: 6 records of 3 ranks, of which 3 read or write; 0 calls incomplete\n"
    );
    let said = esker.ok(["advise", "import", "_text/3.txt", "-o", "b.arrow"]);
    assert!(said.contains("2 records of 1 rank, "), "{said}");
    let said = esker.fails(3, ["advise", "import", ".", "-o", "c.arrow"]);
    assert!(said.contains("_text that `recorder2text` wrote"), "{said}");
    std::fs::write(esker.path("_text/3.txt"), "0.1 0.2 open 1 0 ( /s/a 0 )\nno\n")
        .expect("written");
    let said = esker.fails(12, ["advise", "import", "_text", "-o", "c.arrow"]);
    assert!(said.contains("_text/3.txt at byte 28: line 2: "), "{said}");
    assert!(!esker.path("c.arrow").exists());
}

#[test]
fn patterns_are_made() {
    let esker = Esker::without_store();
    let hpio = ["advise", "synth", "hpio", "-p", "2", "-n", "3", "-r", "4K", "-g", "512"];
    let found = esker.json([&hpio[..], &["-o", "hpio.arrow"]].concat());
    // Open, barrier, three requests, barrier and close of two ranks.
    assert_eq!(found[0]["records"], 14);
    // A request of 4 KiB, one of 4 KiB that writes, and one of 1,000 bytes that reads.
    let mixed = ["advise", "synth", "ior-segmented", "-p", "2", "-R", "9192", "-r", "4K"];
    let found = esker.json([&mixed[..], &["--written", "1", "-o", "mixed.arrow"]].concat());
    assert_eq!(found[0]["case"], "ior-segmented read-write w=1 p=2 n=3 r=4096 A=0 last=1000");
    let said = esker.ok(["advise", "verify", "mixed.arrow"]);
    assert!(said.contains("6 requests of 2 ranks on 1 file"), "{said}");
    let said = esker.fails(2, ["advise", "synth", "btio-like", "-p", "3", "-o", "btio.arrow"]);
    assert!(said.contains("square number of ranks"), "{said}");
    assert!(!esker.path("btio.arrow").exists());
}

#[test]
fn traces_are_checked_and_shown() {
    let esker = Esker::without_store();
    esker.ok(["advise", "synth", "hpio", "-p", "2", "-n", "9", "-g", "512", "-o", "hpio.arrow"]);
    let said = esker.ok(["advise", "verify", "hpio.arrow"]);
    assert!(said.contains("18 requests of 2 ranks on 1 file"), "{said}");
    assert_eq!(esker.json(["advise", "verify", "hpio.arrow"])[0]["gap_bytes_mean"], 66_560);
    esker.ok(["advise", "show", "hpio.arrow", "--to", "hpio.html"]);
    let page = std::fs::read_to_string(esker.path("hpio.html")).expect("a page");
    assert!(page.contains("Offsets over time in /data") && page.ends_with("</html>\n"), "{page}");
    let mut bytes = std::fs::read(esker.path("hpio.arrow")).expect("a trace");
    bytes.truncate(bytes.len() - 1);
    std::fs::write(esker.path("cut.arrow"), bytes).expect("written");
    let said = esker.fails(12, ["advise", "verify", "cut.arrow"]);
    assert!(said.contains("cut.arrow at byte ") && said.contains("truncated"), "{said}");
}

/// Symptom: pages and reports replaced the traces and the rows of which they were made.
#[test]
fn outputs_do_not_replace_what_is_read() {
    let esker = Esker::without_store();
    esker.ok(["advise", "synth", "hpio", "-n", "8", "-o", "a.arrow"]);
    for command in [
        &["show", "a.arrow", "--to", "./a.arrow"][..],
        &["a.arrow", "--report", "a.arrow"],
        &["import", "a.arrow", "-o", "b.arrow", "--features", "a.arrow"],
        &["model", "a.arrow", "--to", "a.arrow"],
        &["paper", "--data", "a.arrow", "--report", "a.arrow"],
    ] {
        let said = esker.fails(2, [&["advise"], command].concat());
        assert!(said.contains("a.arrow would replace a.arrow, which is read"), "{said}");
    }
    esker.ok(["advise", "verify", "a.arrow"]);
}

#[test]
fn designs_are_measured_and_continued() {
    let esker = Esker::without_store();
    let design = ["advise", "measure", "rows.csv", "--pattern", "hpio,request-size", "-r", "1K,4K"];
    let systems = ["--system", "file=big", "--system", "small=small:small", "-R", "16K"];
    let command = [&design[..], &systems, &["--repeat", "2"]].concat();
    let none = esker.ok([&command[..], &["--seconds", "0"]].concat());
    assert!(none.ends_with("0 of 16 runs added, 0 were there, 16 left\n"), "{none}");
    let all = esker.ok(&command);
    assert!(all.ends_with("16 of 16 runs added, 0 were there, 0 left\n"), "{all}");
    let again = esker.ok(&command);
    assert_eq!(again, "rows.csv: 0 of 16 runs added, 16 were there, 0 left\n");
    let rows = std::fs::read_to_string(esker.path("rows.csv")).expect("rows");
    assert_eq!(rows.lines().count(), 17);
    assert!(rows.contains("\nhpio,\"hpio read") || rows.contains("\nhpio,hpio read"), "{rows}");
}

#[test]
fn tables_of_recorder_are_imported() {
    let esker = Esker::without_store();
    std::fs::create_dir(esker.path("_parquet")).expect("made");
    let table = include_bytes!("../../advisor/tests/data/recorder-3.parquet");
    std::fs::write(esker.path("_parquet/0.parquet"), table).expect("written");
    let summary = "5 records of 1 rank, of which 1 reads or writes; 0 calls incomplete\n";
    for log in ["_parquet", "_parquet/0.parquet"] {
        let said = esker.ok(["advise", "import", log, "-o", "a.arrow"]);
        assert_eq!(said, format!("a.arrow: {summary}"));
    }
    std::fs::write(esker.path("_parquet/3.parquet"), table).expect("written");
    let said = esker.fails(12, ["advise", "import", "_parquet", "-o", "b.arrow"]);
    assert!(said.contains("3.parquet, row 0: a call of rank 0 in the table of rank 3"), "{said}");
    std::fs::write(esker.path("_parquet/3.txt"), "").expect("written");
    let said = esker.fails(13, ["advise", "import", "_parquet", "-o", "b.arrow"]);
    assert!(said.contains("3.parquet and ") && said.contains("are of one rank"), "{said}");
    assert!(!esker.path("b.arrow").exists());
}

#[test]
fn rows_are_written_and_read_as_parquet() {
    let esker = Esker::without_store();
    let design = [
        "advise",
        "measure",
        "rows.csv",
        "--pattern",
        "hpio,request-size,noncontiguous",
        "-r",
        "1K,4K",
    ];
    let systems = ["--system", "file=big", "--system", "small=small:small", "-R", "16K"];
    let command = [&design[..], &systems, &["--repeat", "1", "--parquet", "rows.parquet"]].concat();
    esker.ok([&command[..], &["--seconds", "0"]].concat());
    let said = esker.fails(2, ["advise", "paper", "--data", "rows.parquet"]);
    assert!(said.contains("there is no row"), "{said}");
    esker.ok(&command);
    let fitted = |rows: &str| {
        let said = esker.ok(["advise", "model", rows, "--to", "model.json"]);
        (said, std::fs::read(esker.path("model.json")).expect("a model"))
    };
    assert_eq!(fitted("rows.parquet"), fitted("rows.csv"));

    let same = [&design[..], &systems, &["--repeat", "1", "--parquet", "./rows.csv"]].concat();
    assert!(esker.fails(2, &same).contains("would replace rows.csv"));
    std::fs::copy(esker.path("rows.parquet"), esker.path("copy")).expect("copied");
    let copy = [&["advise", "measure", "copy"], &design[3..], &systems].concat();
    let said = esker.fails(2, &copy);
    assert!(said.contains("this file is Parquet"), "{said}");
    assert_eq!(fitted("rows.parquet"), fitted("rows.csv"));
    let refused = [&command[..], &["--parquet", "absent/rows.parquet"]].concat();
    esker.fails(2, &refused);
    let command = [&design[..], &systems, &["--parquet", "absent/rows.parquet"]].concat();
    let said = esker.fails(3, &command);
    assert!(said.contains("make absent/rows.parquet"), "{said}");
    std::fs::write(esker.path("cut.parquet"), b"PAR1 and no more").expect("written");
    let said = esker.fails(12, ["advise", "model", "cut.parquet", "--to", "model.json"]);
    assert!(said.contains("cut.parquet at byte 0: "), "{said}");
}
