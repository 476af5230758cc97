// SPDX-License-Identifier: Apache-2.0
//! `esker doctor`: checks of the machine and the store, and the way for a program.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::esker::Esker;
use crate::forbidden_calls::forbid_calls;
use crate::json::documented_fields;
use crate::mounted::can_mount;
use crate::shown::can_show;
use crate::user::{User, is_root};

/// Names of the checks, in their order; those of the store come first.
const STORE_CHECKS: [&str; 4] = ["store", "store-write", "store-clock", "store-space"];
const MACHINE_CHECKS: [&str; 10] = [
    "mount",
    "mount-users",
    "mount-rings",
    "run-at",
    "spool",
    "spool-memory",
    "open-files",
    "mpi-compiler",
    "mpi-launcher",
    "rank",
];

/// A command whose variables of jobs are not those of the suite's.
fn command(esker: &Esker, arguments: &[&str]) -> Command {
    let mut command = esker.command(arguments);
    for name in ["ESKER_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"] {
        command.env_remove(name);
    }
    command
}

fn lines(output: &Output) -> Vec<Value> {
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The check of this name.
fn check<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    checks.iter().find(|check| check["check"] == name).expect(name)
}

/// Runs `doctor` with `arguments` and JSON, without the system calls `forbidden`.
fn without(esker: &Esker, arguments: &[&str], forbidden: &[i64]) -> Output {
    let mut command = command(esker, &[&["doctor", "--json"], arguments].concat());
    forbid_calls(&mut command, forbidden);
    command.output().expect("it runs")
}

/// The document of `doctor -- words`, which must succeed.
fn advice(esker: &Esker, words: &[&str]) -> Value {
    let output = command(esker, &[&["doctor", "--json", "--"], words].concat()).output();
    let output = output.expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    lines(&output).remove(0)
}

fn words_of_ways(advice: &Value) -> Vec<&str> {
    let ways = advice["ways"].as_array().expect("ways");
    ways.iter().map(|way| way["way"].as_str().expect("a word")).collect()
}

/// The ways in which an ordinary program works here.
fn ways_here() -> Vec<&'static str> {
    let ways = [("run-at", can_show()), ("mount", can_mount())];
    ways.iter().filter(|(_, works)| *works).map(|(way, _)| *way).collect()
}

fn make_program(path: &Path, content: impl AsRef<[u8]>, mode: u32) {
    fs::write(path, content).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

/// The files below `directory`, without those that a store makes for unfinished objects.
fn files_below(directory: &Path) -> Vec<String> {
    let found = Command::new("find").arg(directory).args(["-type", "f"]).output().expect("find");
    let found = String::from_utf8(found.stdout).expect("UTF-8");
    found.lines().filter(|path| !path.contains("/tmp/reserve-")).map(str::to_owned).collect()
}

#[test]
fn each_check_is_a_line() {
    let esker = Esker::new();
    let before = files_below(&esker.store());
    let output = command(&esker, &["doctor"]).output().expect("it runs");
    let printed = String::from_utf8(output.stdout).expect("UTF-8");
    let columns: Vec<Vec<&str>> =
        printed.lines().map(|line| line.split_whitespace().collect()).collect();
    let names: Vec<&str> = columns.iter().map(|words| words[1]).collect();
    assert_eq!(names, [&STORE_CHECKS[..], &MACHINE_CHECKS].concat(), "{printed}");
    for (line, words) in printed.lines().zip(&columns) {
        assert!(["works", "limited", "fails", "info"].contains(&words[0]), "{line}");
        assert_eq!(line.find(words[2]), Some(23), "aligned: {line}");
    }
    assert_eq!(output.status.success(), !ways_here().is_empty());
    assert_eq!(files_below(&esker.store()), before, "a check leaves nothing in the store");
    assert!(!esker.store().join("doctor").exists());
    let checks = esker.json(["doctor"]);
    assert!(check(&checks, "store-write")["values"]["write_seconds"].as_f64() > Some(0.0));
    assert_eq!(check(&checks, "store")["values"]["kind"], "a directory");
    assert!(check(&checks, "store-space")["values"]["free_bytes"].as_u64() > Some(0));
}

#[test]
fn no_store_is_needed_and_a_bad_one_fails() {
    let esker = Esker::without_store();
    let mut no_store = command(&esker, &["doctor", "--json"]);
    let checks = lines(&no_store.env_remove("ESKER_STORE").output().expect("it runs"));
    assert_eq!((checks.len(), &checks[0]["status"]), (1 + MACHINE_CHECKS.len(), &"info".into()));
    let said = esker.fails(3, ["doctor"]);
    assert!(said.contains("store"), "{said}");
    let output = command(&esker, &["doctor", "--json"]).output().expect("it runs");
    let store = &lines(&output)[0];
    assert_eq!(store["status"], "fails");
    let finding = store["finding"].as_str().expect("text");
    assert!(finding.starts_with("cannot be opened: "), "{finding}");
    assert!(finding.contains("esker init"), "{finding}");
    // The checks of the machine follow all the same.
    assert_eq!(lines(&output).len(), 1 + MACHINE_CHECKS.len());
    fs::create_dir(esker.store()).expect("a directory");
    fs::write(esker.store().join("esker.json"), "{").expect("a file");
    esker.fails(12, ["doctor"]);
}

/// Whether sessions can be begun shows only in the directories to which they write.
#[test]
fn read_access_alone_is_limited() {
    if !is_root() {
        println!("skipped: only the superuser can be two users");
        return;
    }
    let esker = Esker::new();
    esker.publish("base", &[("file", "x")]);
    fs::set_permissions(esker.path(""), fs::Permissions::from_mode(0o755)).expect("a mode");
    let user = User::ordinary("022").with_store(&esker.store());
    let limited = |word: &str| {
        let output = user.run(["doctor", "--json"]);
        let checks = lines(&output);
        let write = check(&checks, "store-write");
        assert_eq!(write["status"], "limited", "{write}");
        let finding = write["finding"].as_str().expect("text");
        assert!(finding.starts_with("read access only") && finding.contains(word), "{write}");
        assert_eq!(
            output.status.success(),
            checks.iter().any(|check| {
                check["status"] == "works"
                    && (check["check"] == "mount" || check["check"] == "run-at")
            })
        );
    };
    limited("not allowed");
    for name in ["", "tmp"] {
        let path = esker.store().join(name);
        fs::create_dir_all(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("a mode");
    }
    limited("store/set");
}

#[test]
fn what_does_not_work_is_explained() {
    if !can_show() || !can_mount() || !is_root() {
        println!("skipped: both ways must work, and for the superuser");
        return;
    }
    let esker = Esker::new();
    let no_seccomp = [libc::SYS_seccomp];
    let no_memory = [libc::SYS_process_vm_readv];
    let no_mount = [libc::SYS_mount, libc::SYS_fsopen];
    for (forbidden, name, word) in [
        (&no_seccomp[..], "run-at", "Linux 5.14"),
        (&no_memory, "run-at", "process_vm_readv"),
        (&no_mount, "mount", "CAP_SYS_ADMIN"),
    ] {
        let output = without(&esker, &[], forbidden);
        assert!(output.status.success(), "one way is enough");
        let checks = lines(&output);
        let failed: Vec<_> = checks.iter().filter(|check| check["status"] == "fails").collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(failed[0]["check"], name);
        assert!(failed[0].to_string().contains(word), "{failed:?}");
        for dependent in ["mount-users", "mount-rings"] {
            let finding = check(&checks, dependent)["finding"].as_str().expect("text");
            assert_eq!(finding.contains("mounts do not work"), name == "mount", "{finding}");
        }
        let other = if name == "mount" { "run-at" } else { "mount" };
        let output = without(&esker, &["--", "ls"], forbidden);
        let advice = &lines(&output)[0];
        assert_eq!(words_of_ways(advice), [other]);
        assert!(advice["missing"][0].as_str().is_some_and(|text| text.contains(word)), "{advice}");
    }
    let both = [&no_seccomp[..], &no_mount].concat();
    for arguments in [&[][..], &["--", "ls"]] {
        let output = without(&esker, arguments, &both);
        assert_eq!(output.status.code(), Some(23));
    }
    let output = without(&esker, &["--", "ls"], &both);
    let advice = &lines(&output)[0];
    assert_eq!(words_of_ways(advice), ["library"]);
    assert_eq!(advice["missing"].as_array().map(Vec::len), Some(2), "{advice}");
}

#[test]
fn a_program_is_read_and_not_run() {
    let esker = Esker::new();
    let (script, ran) = (esker.path("script"), esker.path("ran"));
    make_program(&script, format!("#!/bin/sh\ntouch {}\n", ran.display()), 0o755);
    if ways_here().is_empty() {
        return;
    }
    let found = advice(&esker, &["./script"]);
    assert_eq!(words_of_ways(&found), ways_here());
    assert_eq!(
        (&found["program"], &found["interpreters"][0]),
        (&"./script".into(), &"/bin/sh".into())
    );
    assert!(!ran.exists());
    assert_eq!(Command::new(&script).status().expect("it runs").code(), Some(0));
    assert!(ran.exists(), "the script does what the test fears");
    let printed: BTreeSet<String> = found.as_object().expect("one").keys().cloned().collect();
    assert_eq!(printed, documented_fields("doctor -- COMMAND"));
}

#[test]
fn a_command_that_cannot_run_fails() {
    let esker = Esker::new();
    make_program(&esker.path("damaged"), b"\x7fELF\x02\x01\x01", 0o755);
    make_program(&esker.path("windows"), "#!/bin/sh\r\necho\r\n", 0o755);
    for (code, words, said) in [
        (3, &["no-such-program"][..], "PATH"),
        (3, &["mpirun", "-n", "4", "no-such-program"], "no word after the launcher"),
        (6, &["/"], "a directory"),
        (8, &["/etc/passwd"], "you may not run it"),
        (13, &["./damaged"], "ends at byte 7"),
        (13, &["./windows"], "carriage return"),
        (2, &[], "unexpected argument"),
    ] {
        let arguments = match words {
            [] => vec!["doctor", "word"],
            words => [&["doctor", "--"], words].concat(),
        };
        let error = esker.fails(code, arguments);
        assert!(error.contains(said), "{error}");
    }
}

/// Symptom: the commands that doctor printed for a program failed at the store.
/// Cause: only doctor without a program looked at it.
/// Fix: both do.
#[test]
fn a_program_needs_a_usable_store() {
    let user = User::of_suite("022");
    fs::write(user.path("file"), "").expect("write");
    for store in ["file", "file/store"] {
        let command = format!("./esker doctor --store {store} -- true");
        let said = user.does(&format!("{command} 2>&1 && echo succeeded || :"));
        let is_refused = said.contains("the store cannot be used") && !said.contains("Paste");
        assert!(is_refused && !said.contains("succeeded"), "{said}");
    }
    let said = user.does("./esker doctor --store new -- true");
    assert!(said.contains("esker init") && !said.contains("cannot be used"), "{said}");
}

#[test]
fn work_that_is_handed_on_does_not_see_the_files() {
    let esker = Esker::new();
    make_program(&esker.path("sbatch"), "#!/bin/sh\n", 0o755);
    let said = esker.ok(["doctor", "--", "./sbatch", "job.sh"]);
    assert!(said.contains("does not see the files"), "{said}");
}

/// Compiles `source` to `program` beside the store of `esker`; false if that is not possible here.
fn compile(esker: &Esker, compiler: &[&str], source: &str, program: &str) -> bool {
    let path = esker.path(format!("{program}{}", if compiler[0] == "go" { ".go" } else { ".c" }));
    fs::write(&path, source).expect("a file");
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).arg("-o").arg(esker.path(program)).arg(&path);
    command.env("CGO_ENABLED", "0").env("GOCACHE", esker.path("cache"));
    let output = command.output();
    let compiled = output.is_ok_and(|output| output.status.success());
    if !compiled {
        println!("skipped: {compiler:?} makes no program here");
    }
    compiled
}

#[test]
fn compiled_programs_are_told_apart() {
    let esker = Esker::new();
    if ways_here().is_empty() {
        return;
    }
    let c = "#include <sys/mman.h>\nint main(void) { return msync(0, 0, 0); }\n";
    if compile(&esker, &["cc"], c, "dynamic") {
        let found = advice(&esker, &["./dynamic"]);
        assert_eq!((&found["is_static"], &found["is_go"]), (&false.into(), &false.into()));
        assert!(found["libraries"].to_string().contains("libc.so"), "{found}");
        let has_msync = found["differences"].to_string().contains("msync");
        assert_eq!(has_msync, ways_here().contains(&"run-at"), "{found}");
    }
    if compile(&esker, &["cc", "-static"], c, "static") {
        let found = advice(&esker, &["./static"]);
        assert_eq!((&found["is_static"], &found["linker"]), (&true.into(), &Value::Null));
    }
    let go = "package main\nfunc main() {}\n";
    if compile(&esker, &["go", "build"], go, "go-program") {
        let found = advice(&esker, &["./go-program"]);
        assert_eq!((&found["is_static"], &found["is_go"]), (&true.into(), &true.into()));
    }
    let mpi = "#include <mpi.h>\nint main(void) { MPI_File file; return MPI_File_open(MPI_COMM_WORLD, \
               \"f\", 0, MPI_INFO_NULL, &file); }\n";
    if compile(&esker, &["mpicc"], mpi, "mpi-io") {
        // Wherever the library is.
        let library = esker.path("home/esker/lib/libesker_mpiio.so");
        fs::create_dir_all(library.parent().expect("a parent")).expect("mkdir");
        fs::write(library, "").expect("write");
        let words = ["doctor", "--json", "--", "mpirun", "-n", "2", "./mpi-io", "/esker/file"];
        let mut command = command(&esker, &words);
        let output = command.env("HOME", esker.path("home")).output().expect("run");
        let found: Value = lines(&output).remove(0);
        assert_eq!(words_of_ways(&found)[0], "mpi-io");
        let commands = found["ways"][0]["commands"].to_string();
        assert!(commands.contains("mpirun -n 2 env LD_PRELOAD="), "{commands}");
        assert!(commands.contains("libesker_mpiio.so ./mpi-io /esker/file"), "{commands}");
    }
}

/// Makes programs that copy a file to their output: a set-user-id one, one with file capabilities,
/// and one that others may not read.
fn make_privileged_programs(user: &User) {
    let content = fs::read("/bin/cat").expect("a program");
    for (name, mode) in [("privileged", 0o4755), ("capable", 0o755), ("closed", 0o711)] {
        make_program(&user.path(name), &content, mode);
    }
    // cap_net_raw+ep, as `setcap` writes it.
    let capabilities: Vec<u8> =
        [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let (name, flags) = ("security.capability", rustix::fs::XattrFlags::empty());
    rustix::fs::setxattr(user.path("capable"), name, &capabilities, flags).expect("an attribute");
}

/// Symptom: a set-user-id program that was sent to a mount got "Permission denied" there.
/// Cause: after its change of user the kernel denies it a mount of its caller.
/// Fix: the advice is tried here: the commands of each way are pasted.
#[test]
fn programs_that_gain_privileges_can_do_as_advised() {
    if !is_root() || !can_mount() || !can_show() {
        println!("skipped: both ways must work, and only the superuser gives privileges");
        return;
    }
    let user = User::ordinary("022");
    if !user.can_mount() {
        println!("skipped: the user may not mount");
        return;
    }
    make_privileged_programs(&user);
    let allows_others = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    let others = if allows_others { &["mount", "run-at"][..] } else { &["run-at"] };
    user.does("mkdir files && echo text > files/one && ./esker init && ./esker import files base");
    for (program, ways, word) in [
        ("./privileged", others, "without its privilege"),
        ("./capable", &["mount", "run-at"], "it has file capabilities"),
        ("./closed", &["mount"], "not read it"),
    ] {
        let advice = || -> Value {
            let found = user.ok(["doctor", "--json", "--", program, "esker-files/one"]);
            serde_json::from_str(&found).expect("JSON")
        };
        let found = advice();
        assert_eq!(words_of_ways(&found), ways);
        assert!(found["ways"].to_string().contains(word), "{found}");
        for index in 0..ways.len() {
            let commands = advice()["ways"][index]["commands"].clone();
            let commands: Vec<&str> =
                commands.as_array().expect("some").iter().filter_map(Value::as_str).collect();
            let script = commands.join("\n").replace("--write ", "--base base --write ");
            let path = user.path("");
            let shown =
                user.does(&format!("set -e; export PATH={}:$PATH\n{script}", path.display()));
            assert!(shown.lines().any(|line| line == "text"), "{script}\n{shown}");
        }
    }
    // Their owner gains nothing by them.
    let output = Command::new(env!("CARGO_BIN_EXE_esker"))
        .args(["doctor", "--json", "--"])
        .arg(user.path("privileged"))
        .env_remove("ESKER_STORE")
        .output()
        .expect("it runs");
    assert_eq!(lines(&output)[0]["privileges"], Value::Array(Vec::new()));
}

/// A program in place of Slurm's `srun`: one node, whose ranks it starts itself.
const SRUN: &str = "#!/bin/sh
while [ \"${1#-}\" != \"$1\" ]; do shift; done
export SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_STEP_ID=$$
exec \"$@\"
";

/// Symptom: `esker doctor -- srun ./x` said to mount where one types, and failed where mounts do not
/// work.
/// Cause: the commands were those of one node.
/// Fix: `srun` has those of a batch script, which run here with one node.
#[test]
fn commands_for_a_batch_script_publish_its_job() {
    let user = User::of_suite("022");
    make_program(&user.path("srun"), SRUN, 0o755);
    // Suites that run at once would share the directory of the commands.
    let (directory, own) = ("/tmp/esker-files-$SLURM_JOB_ID", user.path("files"));
    let own = own.to_str().expect("UTF-8");
    make_program(&user.path("text"), format!("#!/bin/sh\necho text > {own}/one\n"), 0o755);
    let ways = ways_here().len();
    if ways == 0 {
        return;
    }
    // As Slurm sets them in a batch script.
    let slurm = "SLURM_NNODES=1 SLURM_JOB_ID=7 SLURM_TASKS_PER_NODE='1(x1)'";
    let setting = format!("PATH={}:$PATH {slurm}", user.path("").display());
    user.does("./esker init");
    let explained = user.does(&format!("export {setting}; esker doctor -- srun --ntasks=1 ./text"));
    assert!(explained.contains("Paste into a batch script:"), "{explained}");
    assert!(explained.contains("no word of the command names"), "{explained}");
    for (index, result) in ["result", "result-2"].iter().enumerate().take(ways) {
        let advice =
            user.does(&format!("export {setting}; esker doctor --json -- srun --ntasks=1 ./text"));
        let advice: Value = serde_json::from_str(&advice).expect("JSON");
        assert_eq!(words_of_ways(&advice), ways_here());
        let commands = advice["ways"][index]["commands"].as_array().expect("commands");
        let commands: Vec<&str> = commands.iter().filter_map(Value::as_str).collect();
        let script = commands.join("\n");
        assert!(script.contains(directory), "{script}");
        fs::write(user.path("batch"), script.replace(directory, own)).expect("a script");
        let said = user.does(&format!("export {setting}; bash batch 2>&1"));
        assert_eq!(user.does(&format!("./esker cat {result}:/one")), "text\n", "{said}");
    }
}

#[test]
fn the_program_behind_wrappers_is_read() {
    let esker = Esker::new();
    make_program(&esker.path("text"), "echo text\n", 0o755);
    if ways_here().is_empty() {
        return;
    }
    for wrappers in ["env A=1", "nice -n 5", "timeout 60", "time", "nohup", "setsid"] {
        let words: Vec<&str> = wrappers.split(' ').chain(["./text", "one"]).collect();
        let found = advice(&esker, &words);
        assert_eq!((&found["program"], &found["format"]), (&"./text".into(), &"text".into()));
        let commands = found["ways"][0]["commands"].to_string();
        assert!(commands.contains("sh ./text one"), "{commands}");
    }
    let found = advice(&esker, &["mpirun", "-n", "1", "sh", "a", ":", "-n", "1", "./text"]);
    let reasons = found["ways"][0]["reasons"].to_string();
    assert!(reasons.contains("only the first program, sh, was read"), "{reasons}");
}

/// Symptom: the guide's example failed when its commands were pasted.
/// Cause: its arguments named a directory that was not there.
/// Fix: this test pastes the commands for the guide's own line.
#[test]
fn the_example_of_the_guide_can_be_pasted() {
    let guide =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/unmodified-programs.md");
    let guide = fs::read_to_string(guide).expect("a guide");
    let line = guide.lines().find_map(|line| line.strip_prefix("esker doctor -- tar "));
    let words = line.expect("an example").split('#').next().expect("words").trim();
    if ways_here().is_empty() {
        return;
    }
    let user = User::of_suite("022");
    user.does("./esker init && mkdir folder");
    let path = format!("export PATH={}:$PATH; cd folder", user.path("").display());
    let printed = user.does(&format!("{path}; esker doctor -- tar {words}"));
    assert!(printed.contains("\nThe program finds the files in esker-files. "), "{printed}");
    let commands: Vec<&str> =
        printed.lines().skip_while(|line| *line != "Paste:").skip(1).collect();
    let commands = commands.split(|line| line.is_empty()).next().expect("lines").join("\n");
    user.does(&format!("{path}; set -e\n{commands}"));
    user.does("./esker ls result:/ | grep -q 'tar$'");
}

/// Pastes the commands of each way into a shell of `user`, one after the other in one folder.
fn paste_commands(user: &User) {
    user.does(
        "mkdir folder && printf 'echo text > \"$1/one\"' > folder/text && chmod +x folder/text",
    );
    let path = std::env::var("PATH").expect("a path");
    let path =
        format!("export PATH={}:{path}; unset ESKER_STORE; cd folder", user.path("").display());
    let advice = || -> Value {
        let words = "./text esker-files";
        let printed = user.does(&format!("{path}; esker doctor --json -- {words} || test $? = 23"));
        serde_json::from_str(&printed).expect("JSON")
    };
    let ways = words_of_ways(&advice()).len();
    for (index, result) in ["result", "result-2"].iter().enumerate().take(ways) {
        let advice = advice();
        let way = &advice["ways"][index];
        if way["way"] == "library" {
            println!("skipped: no way works here");
            return;
        }
        let commands = way["commands"].as_array().expect("commands");
        let commands: Vec<&str> = commands.iter().filter_map(Value::as_str).collect();
        assert_eq!(commands.contains(&"esker init"), index == 0, "{commands:?}");
        let script = commands.join("\n");
        let shown = user.does(&format!("{path}; set -e\n{script}\nesker cat {result}:/one >&2"));
        assert!(shown.contains(&format!("published {result} @")), "{script}\n{shown}");
    }
}

#[test]
fn commands_of_a_way_can_be_pasted() {
    paste_commands(&User::of_suite("022"));
}

#[test]
fn commands_of_a_way_can_be_pasted_by_a_user() {
    if is_root() {
        paste_commands(&User::ordinary("022"));
    } else {
        println!("skipped: only the superuser can be somebody else; the other test ran as a user");
    }
}

#[test]
fn a_rank_says_so() {
    let esker = Esker::new();
    let mut rank = command(&esker, &["doctor", "--json"]);
    rank.env("PMI_RANK", "1").env("PMI_SIZE", "2").env("ESKER_JOB", "job");
    let checks = lines(&rank.output().expect("it runs"));
    let rank = check(&checks, "rank");
    assert_eq!((&rank["values"]["rank"], &rank["values"]["ranks"]), (&1.into(), &2.into()));
    let mut broken = command(&esker, &["doctor", "--json"]);
    let checks = lines(&broken.env("PMI_RANK", "1").output().expect("it runs"));
    assert_eq!(check(&checks, "rank")["status"], "fails");
}
