// SPDX-License-Identifier: Apache-2.0
//! Ranks that are processes, started, watched and ended by `launch`.
//!
//! The program that they run is this test binary: the test [`program_of_a_rank`] acts as a rank if
//! `ESKER_TEST_PROGRAM` is set, and does nothing otherwise.

use std::ffi::OsString;
use std::time::Duration;

use esker_base::clock::SystemClock;
use esker_base::store::url;
use esker_base::{Clock, Kind, Result};
use esker_comm::job::RankContext;
use esker_comm::launch::{JobLaunch, JobOutcome, run};
use esker_comm::tcp::{self, TcpOptions, TcpTransport};
use esker_comm::{Channel, Rank, Router, RouterOptions, Routing, Transport, conformance};

const DATA: Channel = Channel(1);
const PROGRAM: &str = "ESKER_TEST_PROGRAM";

#[test]
fn program_of_a_rank() {
    let Ok(program) = std::env::var(PROGRAM) else { return };
    let job = RankContext::from_env().expect("a sound environment").expect("a rank");
    let store = url::open(job.meet.as_ref().expect("a place to meet")).expect("it is there");
    let options = TcpOptions { deadline: Duration::from_secs(60), ..TcpOptions::default() };
    let done = tcp::run(&*store, &job, &options, |transport| act(&program, transport));
    if let Err(error) = done {
        eprintln!("{}: {error}", job.rank);
        std::process::exit(error.kind().exit_code().into());
    }
}

fn act(program: &str, transport: &mut TcpTransport) -> Result<()> {
    match program {
        "conform" => conformance::all(transport),
        // One rank is killed while all push records to all.
        "killed" | "killed-3hop" => {
            let routing = if program == "killed" { Routing::Direct } else { Routing::ThreeHop };
            let (me, size) = (transport.rank(), transport.size());
            let mut router = Router::new(transport, RouterOptions::new(routing))?;
            let mut sink = |_: Rank, _: &[u8]| Ok(());
            for number in 0_u32.. {
                router.push(Rank(number % size), &[7; 40], &mut sink)?;
                if me == Rank(3) && number == 200_000 {
                    let me = rustix::process::getpid();
                    rustix::process::kill_process(me, rustix::process::Signal::KILL)
                        .expect("a process may kill itself");
                }
            }
        }
        "exits" => {
            if transport.rank() == Rank(2) {
                std::process::exit(41);
            }
            transport.receive_soon(&[DATA], "nothing")?;
        }
        _ => panic!("no program {program}"),
    }
    Ok(())
}

fn launch(program: &str, ranks: u32, per_node: u32) -> JobLaunch {
    let me = std::env::current_exe().expect("this program");
    let variable = format!("{PROGRAM}={program}");
    let words = ["--quiet", "--exact", "launch::program_of_a_rank"].map(OsString::from);
    let mut command = vec!["env".into(), variable.into(), me.into_os_string()];
    command.extend(words);
    JobLaunch { command, environment: Vec::new(), ranks, per_node: Some(per_node), store: None }
}

fn shell(script: &str, ranks: u32) -> JobLaunch {
    let command = ["sh", "-c", script].map(OsString::from).to_vec();
    JobLaunch { command, environment: Vec::new(), ranks, per_node: None, store: None }
}

#[test]
fn processes_conform() {
    assert_eq!(run(&launch("conform", 4, 2), &SystemClock).unwrap(), JobOutcome::Success);
}

#[test]
fn a_rank_killed_in_mid_run_ends_the_job_and_is_named() {
    for program in ["killed", "killed-3hop"] {
        let start_ns = SystemClock.monotonic_ns();
        let outcome = run(&launch(program, 6, 2), &SystemClock).unwrap();
        assert_eq!(outcome, JobOutcome::Killed(Rank(3), 9));
        assert_eq!(outcome.exit_code(), 137);
        // No rank waited for a deadline.
        assert!(SystemClock.monotonic_ns() - start_ns < 20_000_000_000);
    }
}

#[test]
fn the_rank_that_failed_first_is_reported() {
    let outcome = run(&launch("exits", 5, 5), &SystemClock).unwrap();
    assert_eq!(outcome, JobOutcome::Exit(Rank(2), 41));
    let script = "[ $ESKER_RANK = 3 ] && exit 7; sleep 60";
    let start_ns = SystemClock.monotonic_ns();
    assert_eq!(run(&shell(script, 4), &SystemClock).unwrap(), JobOutcome::Exit(Rank(3), 7));
    assert!(SystemClock.monotonic_ns() - start_ns < 10_000_000_000, "the others are ended");
}

#[test]
fn ranks_know_who_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "echo $ESKER_RANKS $ESKER_NODE $ESKER_JOB > {}/$ESKER_RANK",
        directory.path().display()
    );
    let launch = JobLaunch { per_node: Some(2), ..shell(&script, 5) };
    assert_eq!(run(&launch, &SystemClock).unwrap(), JobOutcome::Success);
    let mut jobs = Vec::new();
    for rank in 0..5 {
        let text = std::fs::read_to_string(directory.path().join(rank.to_string())).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words[..2], ["5", &(rank / 2).to_string()]);
        jobs.push(words[2].to_owned());
    }
    jobs.dedup();
    assert_eq!(jobs.len(), 1, "one id for all");
}

#[test]
fn what_cannot_be_run_is_refused() {
    let refused = |launch: &JobLaunch| run(launch, &SystemClock).unwrap_err().kind();
    assert_eq!(refused(&shell("true", 0)), Kind::Invalid);
    let absent = JobLaunch { command: vec!["/nowhere/program".into()], ..shell("", 2) };
    assert_eq!(refused(&absent), Kind::NotFound);
    let memory = JobLaunch { store: Some("memory:x".into()), ..shell("true", 1) };
    assert_eq!(refused(&memory), Kind::Invalid);
    let no_store = JobLaunch { store: Some("/nowhere/store".into()), ..shell("true", 1) };
    assert_eq!(refused(&no_store), Kind::NotFound);
}

/// Ranks meet in the store given to the job, and leave nothing in it.
#[test]
fn a_store_that_is_given_is_used() {
    let directory = tempfile::tempdir().unwrap();
    let url = directory.path().join("store").to_string_lossy().into_owned();
    let store = url::init(&url).unwrap();
    let launch = JobLaunch { store: Some(url), ..launch("exits", 3, 3) };
    assert_eq!(run(&launch, &SystemClock).unwrap(), JobOutcome::Exit(Rank(2), 41));
    assert_eq!(store.list("job/").unwrap(), []);
}
