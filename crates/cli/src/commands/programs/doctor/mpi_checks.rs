// SPDX-License-Identifier: Apache-2.0
//! MPI checks: which MPI is installed, and whether this process is a rank of a job.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use esker_comm::job::RankContext;

use super::check::{CheckStatus, MachineCheck};
use super::search_path::find_program;

/// How often a program is asked whether it has ended, and for how long.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const POLLS_MAX: u32 = 150;
/// Bytes of its output that are read.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// The compiler and the launcher of MPI, and the rank of this process.
pub fn mpi_checks() -> Vec<MachineCheck> {
    let compiler = found("mpicc", &[&["--showme:version"], &["-v"]]);
    let launcher = found("mpirun", &[&["--version"]]);
    let differ = match (&compiler, &launcher) {
        (Some((_, one)), Some((_, other))) => one != other && one.is_some() && other.is_some(),
        _ => false,
    };
    let mut checks = vec![
        check_of(
            "mpi-compiler",
            "mpicc",
            compiler,
            "MPI-IO programs need it once, to build a library",
        ),
        check_of("mpi-launcher", "mpirun", launcher, "it may be in a module: `module avail mpi`"),
    ];
    if differ {
        checks[1].status = CheckStatus::Limited;
        checks[1].advice = Some(
            "programs of one MPI do not run under the launcher of the other: set PATH to one of them"
                .into(),
        );
    }
    checks.push(rank_check());
    checks
}

fn check_of(
    name: &'static str,
    program: &str,
    found: Option<(String, Option<&'static str>)>,
    absent: &str,
) -> MachineCheck {
    match found {
        Some((path, implementation)) => {
            let shown = implementation.unwrap_or("an MPI that this release does not know");
            MachineCheck::new(name, CheckStatus::Works, format!("{path} is of {shown}"))
                .with("path", path)
                .with("implementation", implementation)
        }
        None => {
            let finding = format!("there is no {program} on PATH; {absent}");
            MachineCheck::new(name, CheckStatus::Info, finding)
        }
    }
}

/// The path of `program`, and its implementation of MPI, by its answer to one of `questions`.
fn found(program: &str, questions: &[&[&str]]) -> Option<(String, Option<&'static str>)> {
    let path = find_program(program.as_ref())?;
    let answers = questions.iter().filter_map(|question| output_of(&path, question));
    let implementation = answers.filter_map(|answer| implementation_of(&answer)).next();
    Some((path.display().to_string(), implementation))
}

/// The implementation of MPI that `answer` names.
fn implementation_of(answer: &str) -> Option<&'static str> {
    const WORDS: [(&str, &str); 6] = [
        ("Open MPI", "Open MPI"),
        ("OpenRTE", "Open MPI"),
        ("Intel(R) MPI", "Intel MPI"),
        ("MVAPICH", "MVAPICH"),
        ("MPICH", "MPICH"),
        ("HYDRA", "MPICH"),
    ];
    WORDS.iter().find(|(word, _)| answer.contains(word)).map(|(_, name)| *name)
}

/// The output of a program, if it ends within seconds.
fn output_of(path: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    if !wait_for(&mut child) {
        return None;
    }
    let mut output = Vec::new();
    child.stdout.take()?.take(OUTPUT_BYTES_MAX).read_to_end(&mut output).ok()?;
    Some(String::from_utf8_lossy(&output).into_owned())
}

/// Waits for the end of `child`, and ends it if that takes too long.
fn wait_for(child: &mut Child) -> bool {
    for _ in 0..POLLS_MAX {
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let _ = child.kill();
    let _ = child.wait();
    false
}

fn rank_check() -> MachineCheck {
    match RankContext::from_env() {
        Ok(Some(rank)) => {
            let finding =
                format!("this process is {} of {} ranks of job {}", rank.rank, rank.size, rank.id);
            MachineCheck::new("rank", CheckStatus::Info, finding)
                .with("rank", rank.rank.0)
                .with("ranks", rank.size)
                .with("job", rank.id)
        }
        Ok(None) => {
            let finding = match std::env::var_os("SLURM_JOB_ID") {
                Some(_) => {
                    "this process is no rank; it is in a job of Slurm, in which `srun` starts ranks"
                }
                None => "this process is no rank of a job",
            };
            MachineCheck::new("rank", CheckStatus::Info, finding)
        }
        Err(error) => MachineCheck::failed("rank", &error)
            .advise("a launcher sets these variables: unset them, or start the job again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implementations_are_known_by_their_words() {
        for (answer, implementation) in [
            ("mpirun (Open MPI) 4.1.4\n", Some("Open MPI")),
            ("mpicc: Open MPI 4.1.4 (Language: C)", Some("Open MPI")),
            ("HYDRA build details:\n    Version: 4.0.2", Some("MPICH")),
            ("mpicc for MPICH version 4.0.2", Some("MPICH")),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.9", Some("Intel MPI")),
            ("gcc version 12", None),
        ] {
            assert_eq!(implementation_of(answer), implementation);
        }
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        assert!(!wait_for(&mut child));
        assert!(matches!(child.try_wait(), Ok(Some(_))));
    }

    #[test]
    fn output_is_what_a_program_prints() {
        let output = output_of(Path::new("/bin/sh"), &["-c", "echo one; echo two >&2"]);
        assert_eq!(output.as_deref(), Some("one\n"));
        assert_eq!(output_of(Path::new("/no/such/program"), &[]), None);
    }
}
