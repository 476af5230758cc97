// SPDX-License-Identifier: Apache-2.0
//! Live jobs: ranks that serve a live namespace, and use it; jobs of other sizes that go on with it.

use std::process::{Command, Stdio};

use esker::{Kind, LiveJob, Repository, Result, Transport, threads};

/// Creates `count` files of this rank in `/d`, which is spread, in requests of many.
fn create<T: Transport>(job: &LiveJob<T>, prefix: &str, count: u32) -> Result<()> {
    let me = job.rank().0;
    let names: Vec<String> = (0..count).map(|number| format!("{prefix}{me}.{number}")).collect();
    let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    let created = job.namespace().create_many("/d", &names)?;
    created.into_iter().collect()
}

#[test]
fn a_job_of_another_size_goes_on() -> Result<()> {
    let repository = crate::repository();
    let session = repository.session().begin()?;
    session.write("/input", "7")?;
    session.publish("base")?;
    let served = threads::run(6, 3, |transport| {
        let job = repository.live_job("run").on("base").servers_per_node(2).begin(transport)?;
        if job.rank().0 == 5 {
            job.namespace().create_spread_dir("/d")?;
        }
        job.barrier()?;
        assert_eq!(job.namespace().read("/input")?, b"7");
        create(&job, "a", 300)?;
        job.snapshot("one")?;
        // One rank's names are all ranks'.
        assert_eq!(job.namespace().entries("/d")?.len(), 1_800);
        let served = job.seats_served();
        job.end()?;
        Ok(served)
    })?;
    assert_eq!(served, [1, 1, 0, 1, 1, 0]);
    assert_eq!(repository.snapshot("one")?.entries("/d")?.count(), 1_800);
    // Of four seats two servers have two each.
    let served = threads::run(2, 1, |transport| {
        let job = repository.live_job("run").begin(transport)?;
        create(&job, "b", 10)?;
        job.snapshot("two")?;
        let served = job.seats_served();
        job.remove()?;
        Ok(served)
    })?;
    assert_eq!(served, [2, 2]);
    assert_eq!(repository.snapshot("two")?.entries("/d")?.count(), 1_820);
    assert_eq!(repository.live("run").expect_err("removed").kind(), Kind::NotFound);
    Ok(())
}

#[test]
fn what_a_dead_job_synced_stays() -> Result<()> {
    let repository = crate::repository();
    threads::run(3, 3, |transport| {
        let job = repository.live_job("run").servers_per_node(3).begin(transport)?;
        if job.rank().0 == 0 {
            job.namespace().create_spread_dir("/d")?;
        }
        job.barrier()?;
        create(&job, "a", 100)?;
        job.namespace().sync()?;
        job.barrier()
        // The servers stop without ending their sessions.
    })?;
    threads::run(2, 2, |transport| {
        let job = repository.live_job("run").take_over().begin(transport)?;
        assert_eq!(job.namespace().entries("/d")?.len(), 300);
        job.end()
    })?;
    Ok(())
}

#[test]
fn a_failure_of_one_rank_is_that_of_all() -> Result<()> {
    let repository = crate::repository();
    let failed = threads::run(4, 2, |transport| {
        let begun = repository.live_job("run").on("none").begin(transport);
        Ok(begun.expect_err("no such base").kind())
    })?;
    assert_eq!(failed, [Kind::NotFound; 4]);
    threads::run(4, 2, |transport| {
        let job = repository.live_job("run").begin(transport)?;
        let taken = job.snapshot("taken").map(drop);
        taken?;
        let again = job.snapshot("taken").expect_err("the name is taken");
        assert_eq!(again.kind(), Kind::Exists);
        job.end()
    })?;
    threads::run(2, 1, |transport| repository.live_job("run").begin(transport)?.remove())?;
    Ok(())
}

/// Processes whose host names differ connect over TCP, with the secret of their user.
#[test]
fn ranks_on_several_machines_reach_each_other() -> std::io::Result<()> {
    let renamed = Command::new("unshare").args(["--uts", "hostname", "machine"]).output()?;
    if !renamed.status.success() {
        println!("skipped: this user gives no process another host name");
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let program = program.ancestors().nth(2).expect("target").join("examples/live_job");
    let home = tempfile::tempdir()?;
    let store = home.path().join("store");
    let url = store.to_str().expect("text");
    let repository = Repository::create(url)?;
    let start = |rank: u32| {
        let mut command = Command::new("unshare");
        let line = "hostname machine-$ESKER_NODE && exec \"$0\"";
        command.args(["--uts", "sh", "-c", line]).arg(&program).stdout(Stdio::null());
        let node = (rank / 2).to_string();
        let rank = rank.to_string();
        let variables = [
            ("ESKER_RANK", &rank[..]),
            ("ESKER_RANKS", "4"),
            ("ESKER_NODE", &node),
            ("ESKER_JOB", "machines"),
            ("ESKER_ADDRESS", "127.0.0.1"),
            ("ESKER_STORE", url),
        ];
        command.envs(variables).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME").spawn()
    };
    let ranks: Vec<_> = (0..4).map(start).collect::<std::io::Result<_>>()?;
    for mut rank in ranks {
        assert!(rank.wait()?.success());
    }
    assert!(home.path().join(".config/esker/live-secret").exists(), "no secret was needed");
    assert_eq!(repository.snapshot("live-job")?.entries("/checkpoint")?.count(), 4_004);
    Ok(())
}
