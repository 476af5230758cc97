// SPDX-License-Identifier: Apache-2.0
//! Parts of a job that unmodified programs write, in mounts and without one, and their union.

use std::fs;
use std::path::Path;

use crate::esker::Esker;
use crate::mounted::{Mounted, can_mount};
use crate::shown::can_show;

/// The id of a new job.
fn new_job(esker: &Esker) -> String {
    esker.ok(["session", "job"]).trim().to_owned()
}

/// Publishes `job` as `all`; returns what is said of conflicts.
fn conflicts_of(esker: &Esker, job: &str) -> String {
    let output = esker.run(["publish", "--job", job, "all"]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Each rank sees the base and its own changes; the union has all, and says where two differ.
#[test]
fn ranks_without_a_mount_write_parts_of_a_job() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    esker.publish("base", &[("input", "from the base"), ("gone", "x")]);
    let job = new_job(&esker);
    let program = "cat input > out/$ESKER_RANK; echo $ESKER_RANK > same; rm -f gone; ls | wc -l";
    let rank = format!(
        "at={}/node-$ESKER_RANK; exec {} run --at $at --job {job} --base base -- \
         sh -ec \"cd $at; mkdir -p out; \"'{program}'",
        esker.path("").display(),
        env!("CARGO_BIN_EXE_esker")
    );
    let said = esker.ok(["run", "-n", "3", "--", "sh", "-ec", &rank]);
    for rank in 0..3 {
        let complete = format!("part {rank} of job {job} is complete: @");
        assert!(said.contains(&complete), "{said}");
    }
    assert_eq!(said.lines().filter(|line| *line == "3").count(), 3, "{said}");
    let conflicts = conflicts_of(&esker, &job);
    assert!(conflicts.contains("same") && !conflicts.contains("gone"), "{conflicts}");
    assert_eq!(
        esker.ok(["find", "all:/", "--sorted"]),
        "/\n/input\n/out\n/out/0\n/out/1\n/out/2\n/same\n"
    );
    for rank in 0..3 {
        assert_eq!(esker.ok(["cat", &format!("all:/out/{rank}")]), "from the base");
    }
    let same = esker.ok(["cat", "all:/same"]);
    assert!(["0\n", "1\n", "2\n"].contains(&&*same), "{same}");
    assert_eq!(esker.json(["session", "list"]).len(), 0);
    assert!(esker.ok(["verify"]).starts_with("sound"));
}

#[test]
fn a_part_whose_program_fails_stays_open() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    let (job, at) = (new_job(&esker), esker.path("at").display().to_string());
    let run = |script: &str| {
        let words = ["run", "--at", &at, "--job", &job, "--rank", "7", "--", "sh", "-ec", script];
        esker.fails(3, words)
    };
    let said = run(&format!("echo x > {at}/file; exit 3"));
    assert!(said.contains(&format!("so part 7 of job {job} was not completed")), "{said}");
    let set = said.split("session drop @").nth(1).map(str::trim_end).expect("named");
    assert!(said.contains(&format!("esker session complete @{set}")), "{said}");
    assert_eq!(esker.ok(["cat", &format!("@{set}:/file")]), "x\n");
    // Nothing is published until all parts are complete, and a rank has one part.
    let said = esker.fails(13, ["publish", "--job", &job, "all"]);
    assert!(said.contains(&format!("part 7 (@{set}")), "{said}");
    assert!(esker.ok(["session", "list"]).contains(&format!("part 7 of job {job}")));
    let words = ["run", "--at", &at, "--job", &job, "--rank", "7", "--", "true"];
    let said = esker.fails(4, words);
    assert!(said.contains(&format!("go on with @{set}")), "{said}");
    esker.ok(["session", "complete", &format!("@{set}")]);
    let said = esker.fails(4, words);
    assert!(said.contains("to write it again, drop it by"), "{said}");
    let said = esker.fails(13, ["publish", "--job", &job, "--parts", "2", "all"]);
    assert!(said.contains("has 1 part (7), not 2"), "{said}");
    let said = esker.ok(["publish", "--job", &job, "--parts", "1", "all"]);
    assert!(said.ends_with("joined 1 part of the job: 7\n"), "{said}");
    assert_eq!(esker.ok(["cat", "all:/file"]), "x\n");
}

#[test]
fn a_part_needs_a_job_and_a_number() {
    let esker = Esker::new();
    let at = esker.path("at").display().to_string();
    let job = new_job(&esker);
    for words in [
        &["run", "--at", &at, "--job", &job, "--", "true"][..],
        &["run", "--at", &at, "--rank", "1", "--", "true"],
        &["run", "--at", &at, "--job", &job, "--rank", "1", "--write", "new", "--", "true"],
        &["run", "-n", "1", "--job", &job, "--rank", "1", "--", "true"],
        &["run", "-n", "1", "--write", "new", "--", "true"],
        &["run", "--at", &at, "--job", "7", "--rank", "1", "--", "true"],
        &["run", "--at", &at, "--write", "new", "--rank", "1", "--", "true"],
        &["run", "--at", &at, "--write", "new", "--resume", "--", "true"],
        &["run", "--job", &job, "--rank", "1", "--", "true"],
        &["mount", "--job", &job, &at],
        &["mount", "--job", &job, "--rank", "1", "--write", "new", &at],
    ] {
        esker.fails(2, words);
    }
    assert_eq!(esker.json(["session", "list"]).len(), 0);
}

/// The mounts of two nodes, of which one dies and is resumed.
#[test]
fn mounts_write_parts_of_a_job() {
    if !can_mount() {
        return;
    }
    let first = Mounted::new();
    first.esker.publish("base", &[("dir/old", "old"), ("log", "")]);
    let job = new_job(&first.esker);
    let second = first.esker.path("second");
    fs::create_dir(&second).expect("a new directory");
    let second = second.to_str().expect("UTF-8");
    let part = |rank: &'static str| ["mount", "--job", &job, "--rank", rank];
    let begin = |rank| [&part(rank)[..], &["--base", "base"]].concat();
    first.mount(&begin("0"));
    let said = first.esker.ok([&begin("1")[..], &[second]].concat());
    assert!(said.contains(&format!("it will be part 1 of job {job}")), "{said}");
    fs::write(first.path("dir/of-0"), "zero").expect("write");
    fs::write(Path::new(second).join("dir/of-1"), "one").expect("write");
    fs::remove_file(Path::new(second).join("dir/old")).expect("remove");
    fs::write(Path::new(second).join("log"), "one").expect("write");

    // A second mount of the part is refused while it is open, and resumes it after a crash.
    let third = first.esker.path("third");
    fs::create_dir(&third).expect("a new directory");
    first.esker.fails(4, [&begin("0")[..], &[third.to_str().expect("UTF-8")]].concat());
    fs::File::open(first.path("dir/of-0")).and_then(|file| file.sync_all()).expect("sync");
    first.crash();
    let said = first.esker.run(["umount", first.root().to_str().expect("UTF-8")]).stderr;
    let advice = format!("`esker mount --job {job} --rank 0 --resume {}`", first.root().display());
    assert!(String::from_utf8_lossy(&said).contains(&advice), "{}", String::from_utf8_lossy(&said));
    first.mount(&[&part("0")[..], &["--resume"]].concat());
    assert_eq!(fs::read(first.path("dir/of-0")).expect("read"), b"zero");
    fs::write(first.path("log"), "zero").expect("write");
    let said = first.end();
    assert!(said.contains(&format!("part 0 of job {job} is complete: @")), "{said}");
    let resumed = [&part("0")[..], &["--resume", first.root().to_str().expect("UTF-8")]].concat();
    let said = first.esker.run(resumed).stderr;
    assert!(String::from_utf8_lossy(&said).contains("is complete"), "{said:?}");

    first.esker.ok(["umount", second]);
    let conflicts = conflicts_of(&first.esker, &job);
    assert!(conflicts.contains("log") && !conflicts.contains("dir"), "{conflicts}");
    assert_eq!(
        first.esker.ok(["find", "all:/", "--sorted"]),
        "/\n/dir\n/dir/of-0\n/dir/of-1\n/log\n"
    );
    let log = first.esker.ok(["cat", "all:/log"]);
    assert!(["zero", "one"].contains(&&*log), "{log}");
    assert!(first.esker.ok(["verify"]).starts_with("sound"));
}

/// Symptom: a part that removed a directory which another had moved emptied it at its new place, and
/// nothing was reported.
/// Cause: both parts have no record at the old name, which counted as agreement.
/// Fix: a removal beside a move is a conflict.
#[test]
fn a_directory_that_one_part_moved_and_another_removed_is_a_conflict() {
    let esker = Esker::new();
    esker.publish("base", &[("d/e/file", "x"), ("other", "")]);
    let job = new_job(&esker);
    let begin = |rank: &str| {
        let words = ["session", "begin", "--base", "base", "--job", &job, "--rank", rank];
        esker.ok(words).trim().to_owned()
    };
    let (remover, mover) = (begin("0"), begin("1"));
    esker.ok(["rm", "-r", &format!("{remover}:/d")]);
    esker.ok(["mv", &format!("{mover}:/d"), &format!("{mover}:/moved")]);
    // Both agree on this one.
    esker.ok(["rm", &format!("{remover}:/other")]);
    esker.ok(["rm", &format!("{mover}:/other")]);
    esker.ok(["session", "complete", &remover, &mover]);
    let refuse = ["publish", "--job", &job, "--conflicts", "refuse", "refused"];
    let said = esker.fails(9, refuse);
    let conflict = "esker: /d: parts disagree: one part removed it and another changed it";
    assert!(said.starts_with(conflict) && said.contains("the parts conflict at 1 name"), "{said}");
    assert_eq!(esker.json(["session", "list"]).len(), 2, "the parts stay");
    esker.fails(3, ["ls", "refused:/"]);
    esker.fails(2, ["publish", "--job", &job, "--conflicts", "newest", "newest"]);
    let conflicts = conflicts_of(&esker, &job);
    assert!(conflicts.starts_with(conflict) && conflicts.lines().count() == 1, "{conflicts}");
    assert_eq!(esker.ok(["cat", "all:/moved/e/file"]), "x");
    esker.fails(2, ["publish", "--job", &job, &mover, "one"]);
    assert!(esker.ok(["verify"]).starts_with("sound"));
    // Without conflicts it publishes.
    let job = new_job(&esker);
    let part = esker.ok(["session", "begin", "--job", &job, "--rank", "0"]);
    esker.ok(["session", "complete", part.trim()]);
    esker.ok(["publish", "--job", &job, "--conflicts", "refuse", "without"]);
}

/// A snapshot in between is no part, and does not end the part.
#[test]
fn a_part_that_is_mounted_can_be_committed_in_between() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new();
    let job = new_job(&mounted.esker);
    mounted.mount(&["mount", "--job", &job, "--rank", "0"]);
    fs::write(mounted.path("file"), "first").expect("write");
    let at = mounted.root().to_str().expect("UTF-8");
    assert!(mounted.esker.ok(["commit", at, "between"]).starts_with("published between @"));
    fs::write(mounted.path("file"), "second").expect("write");
    mounted.end();
    mounted.esker.ok(["publish", "--job", &job, "all"]);
    assert_eq!(mounted.esker.ok(["cat", "between:/file"]), "first");
    assert_eq!(mounted.esker.ok(["cat", "all:/file"]), "second");
    assert!(mounted.esker.ok(["verify"]).starts_with("sound"));
}

/// The batch script of Slurm on the guide's page `page`, for the store of `esker`, with 2 ranks a node.
fn batch_script(page: &str, esker: &Esker) -> String {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let text = fs::read_to_string(top.join(page)).expect("a page");
    let script = text.split("```").find(|block| block.contains("#SBATCH")).expect("a batch script");
    let (_, script) = script.split_once('\n').expect("lines");
    let store = esker.store().display().to_string();
    script.replace("/scratch/store", &store).replace("-n 32", "-n 2")
}

/// Runs the guide's batch script in a job of two nodes, which are directories here: the stand-in for
/// srun gives each its own `TMPDIR`.
fn run_batch_script(esker: &Esker, page: &str) {
    let srun = r#"#!/bin/bash
each=2
while [[ $1 == -* ]]; do
    [[ $1 != --ntasks-per-node=* ]] || each=${1#*=}
    shift
done
tasks=()
for ((rank = 0; rank < 2 * each; rank++)); do
    node=$((rank / each))
    mkdir -p "$PWD/node-$node"
    SLURM_NODEID=$node SLURM_PROCID=$rank SLURM_NTASKS=$((2 * each)) SLURM_JOB_ID=1 \
        TMPDIR=$PWD/node-$node "$@" &
    tasks+=($!)
done
code=0
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit $code
"#;
    let simulate = "#!/bin/sh\ncat $1/input > $1/of-$SLURM_NODEID-${ESKER_RANK:-$SLURM_PROCID}\n";
    for (name, text) in [("srun", srun), ("simulate", simulate)] {
        let path = esker.path(name);
        fs::write(&path, text).expect("write");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).expect("mode");
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_esker")).parent().expect("a directory");
    let path = std::env::var("PATH").expect("a path");
    let path = format!("{}:{}:{path}", esker.path("").display(), programs.display());
    let script = batch_script(page, esker);
    let mut bash = std::process::Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script]).current_dir(esker.path(""));
    let output = bash.env("PATH", path).env("SLURM_NNODES", "2").output().expect("bash");
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "{said:?}");
}

#[test]
fn a_batch_script_without_mounts_writes_a_part_on_each_node() {
    if !can_show() {
        return;
    }
    let esker = Esker::new();
    esker.publish("input", &[("input", "common")]);
    run_batch_script(&esker, "unmodified-programs.md");
    let expected = "/\n/input\n/of-0-0\n/of-0-1\n/of-1-0\n/of-1-1\n";
    assert_eq!(esker.ok(["find", "result:/", "--sorted"]), expected);
    assert_eq!(esker.ok(["cat", "result:/of-1-1"]), "common");
}

#[test]
fn a_batch_script_with_mounts_writes_a_part_on_each_node() {
    if !can_mount() {
        return;
    }
    let esker = Esker::new();
    esker.publish("input", &[("input", "common")]);
    run_batch_script(&esker, "mount.md");
    let expected = "/\n/input\n/of-0-0\n/of-0-1\n/of-1-2\n/of-1-3\n";
    assert_eq!(esker.ok(["find", "result:/", "--sorted"]), expected);
    assert_eq!(esker.ok(["cat", "result:/of-1-3"]), "common");
}
