// SPDX-License-Identifier: Apache-2.0
//! Batch commands: what to put into a batch script of Slurm for a program that `srun` starts.
//!
//! Daemons start the ranks, so what is mounted where the script runs, or runs there, does not
//! concern them. One step has a process on each node instead: `esker run --at`, which starts the
//! ranks of its node, or a mount, which the ranks of other steps see. Each writes a part of a job.
//! Source: docs/guide/unmodified-programs.md and docs/guide/mount.md, Jobs on several nodes.

use super::command_words::CommandWords;

/// Ranks of a node: as the job says, or as Slurm divides them, of which it says `16(x4),1`.
const RANKS: &str = "${SLURM_NTASKS_PER_NODE:-${SLURM_TASKS_PER_NODE%%[(,]*}}";

/// The directory at which files are shown on each node, for the shell of the batch script: jobs
/// share nodes.
pub const BATCH_DIRECTORY: &str = "/tmp/esker-files-$SLURM_JOB_ID";

/// The commands that run the program by one `esker run --at` on each node and publish `result`.
/// The program gets `inserted` before it.
pub fn run_at_commands(words: &CommandWords, inserted: &str, result: &str) -> Vec<String> {
    let (before, program) = (words.before_launcher(), words.line_after_launcher(inserted));
    vec![
        "job=$(esker session job)".into(),
        format!(
            "{before}srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 esker run -n {RANKS} --at \
             {BATCH_DIRECTORY} --job $job -- {program} && esker publish --job $job --parts \
             $SLURM_NNODES {result}"
        ),
    ]
}

/// The commands that mount on each node with `options`, run `line` and publish `result` if it
/// succeeded.
pub fn mount_commands(line: &str, options: &str, result: &str) -> Vec<String> {
    vec![
        "job=$(esker session job)".into(),
        "each=\"srun --overlap --ntasks=$SLURM_NNODES --ntasks-per-node=1\"".into(),
        format!(
            "$each sh -c \"mkdir -p {BATCH_DIRECTORY}; exec esker mount --foreground {options}--job \
             $job {BATCH_DIRECTORY}\" &"
        ),
        format!(
            "$each timeout 60 sh -c \"until mountpoint -q {BATCH_DIRECTORY}; do sleep 0.1; done\" || \
             exit"
        ),
        format!("{line} && succeeded=yes"),
        format!("$each esker umount {BATCH_DIRECTORY} && wait || exit"),
        format!(
            "[ \"$succeeded\" = yes ] && esker publish --job $job --parts $SLURM_NNODES {result}"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_one_process_of_esker() {
        let words = ["env", "A=1", "srun", "-n", "64", "nice", "sh", "a b"];
        let words = CommandWords::new(words.iter().map(std::ffi::OsString::from).collect());
        let commands = run_at_commands(&words.expect("a program"), "", "result");
        let start = "env A=1 srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 esker run";
        assert!(commands[1].starts_with(start), "{commands:?}");
        assert!(commands[1].contains(" -- nice sh 'a b' && esker publish"), "{commands:?}");
        let commands = mount_commands("srun -n 64 sh", "--allow-other ", "result");
        assert!(commands[2].contains("--foreground --allow-other --job $job"), "{commands:?}");
        assert_eq!(commands[4], "srun -n 64 sh && succeeded=yes");
    }
}
