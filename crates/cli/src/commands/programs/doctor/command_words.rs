// SPDX-License-Identifier: Apache-2.0
//! Command words: which word of a command is its program, where wrappers such as `env` or a launcher
//! such as `mpirun` come first.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esker_base::{Error, Kind, Result, shell_word};

use super::search_path::{find_program, may_run};
use super::wrapper_words::wrapper_length;

/// Programs that start the ranks of a job.
const LAUNCHERS: &[JobLauncher<'static>] = &[
    JobLauncher { name: "mpirun", uses_daemons: false },
    JobLauncher { name: "mpiexec", uses_daemons: false },
    JobLauncher { name: "mpiexec.hydra", uses_daemons: false },
    JobLauncher { name: "orterun", uses_daemons: false },
    JobLauncher { name: "prterun", uses_daemons: false },
    JobLauncher { name: "srun", uses_daemons: true },
    JobLauncher { name: "aprun", uses_daemons: true },
    JobLauncher { name: "jsrun", uses_daemons: true },
];

/// Programs that start others elsewhere or later.
const ELSEWHERE: &[&str] = &[
    "sbatch",
    "qsub",
    "bsub",
    "ssh",
    "rsh",
    "pdsh",
    "docker",
    "podman",
    "kubectl",
    "at",
    "batch",
    "systemd-run",
];

/// A program that starts the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLauncher<'a> {
    /// Its name.
    pub name: &'a str,
    /// True if daemons start the ranks, also those on the launcher's own node.
    pub uses_daemons: bool,
}

/// The words of a command: `[WRAPPER…] [LAUNCHER OPTION… [WRAPPER…]] PROGRAM ARGUMENT…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandWords {
    words: Vec<OsString>,
    /// Number of words at the start that only a shell knows: its keyword `time`.
    keyword_length: usize,
    /// Index of the launcher.
    launcher: Option<usize>,
    /// Index of the first word that the launcher starts.
    started: usize,
    /// Index of the program.
    program: usize,
    /// Indices of the further programs of a launcher, each behind a `:`.
    further: Vec<usize>,
}

impl CommandWords {
    /// The words of a command; there is at least one. After a launcher, the program is the first
    /// word that is no option and names a file that this user may run. The program behind wrappers
    /// such as `env` is found, too.
    ///
    /// # Errors
    /// `NotFound` if there is none after a launcher.
    pub fn new(words: Vec<OsString>) -> Result<Self> {
        let first = skip_wrappers(&words, 0);
        let has_keyword = words[0] == "time" && first > 0 && find_program(&words[0]).is_none();
        let keyword_length = if has_keyword { wrapper_length(&words) } else { 0 };
        let launcher = launcher(&words[first]).map(|_| first);
        let mut found =
            Self { words, keyword_length, launcher, started: 0, program: first, further: vec![] };
        if launcher.is_some() {
            found.find_started(first + 1)?;
        }
        Ok(found)
    }

    /// Finds the programs that a launcher starts, whose options begin at `start`.
    fn find_started(&mut self, start: usize) -> Result<()> {
        let words = &self.words;
        let first_program = |start: usize| words[start..].iter().position(is_program);
        let Some(behind) = first_program(start) else {
            let what = format!(
                "`{}`: no word after the launcher names a program that you may run: give its path",
                line_of(words)
            );
            return Err(Error::new(Kind::NotFound, what));
        };
        self.started = start + behind;
        self.program = skip_wrappers(words, self.started);
        let mut next = self.program;
        while let Some(behind) = words[next..].iter().position(|word| word == ":") {
            next += behind + 1;
            let Some(behind) = first_program(next) else { break };
            next = skip_wrappers(words, next + behind);
            self.further.push(next);
        }
        Ok(())
    }

    /// The program.
    pub fn program(&self) -> &OsStr {
        &self.words[self.program]
    }

    /// The further programs that the launcher starts beside the first.
    pub fn further_programs(&self) -> impl Iterator<Item = &OsStr> {
        self.further.iter().map(|index| self.words[*index].as_os_str())
    }

    /// The launcher that starts the program.
    pub fn launcher(&self) -> Option<JobLauncher<'static>> {
        launcher(&self.words[self.launcher?])
    }

    /// True if the program hands its work to other processes, which do not see the caller's files.
    pub fn is_elsewhere(&self) -> bool {
        let name = std::path::Path::new(self.program()).file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| ELSEWHERE.contains(&name))
    }

    /// True if Slurm's daemons start the program.
    pub fn is_of_slurm(&self) -> bool {
        self.launcher().is_some_and(|launcher| launcher.name == "srun")
    }

    /// All words.
    pub fn all(&self) -> &[OsString] {
        &self.words
    }

    /// The command with the words of a launcher before the program.
    ///
    /// # Errors
    /// As [`CommandWords::new`].
    pub fn launched_by(&self, launcher: &[&str]) -> Result<Self> {
        let mut words = self.words.clone();
        words.splice(self.program..self.program, launcher.iter().map(OsString::from));
        Self::new(words)
    }

    /// A keyword of the shell that precedes the command, and a space; or nothing.
    pub fn keyword(&self) -> String {
        with_space(line_of(&self.words[..self.keyword_length]))
    }

    /// The wrappers before the launcher, and a space; or nothing.
    pub fn before_launcher(&self) -> String {
        let end = self.launcher.unwrap_or(self.keyword_length);
        with_space(line_of(&self.words[..end]))
    }

    /// The command for a shell, without [`CommandWords::keyword`], with `inserted` before the
    /// program: words that a shell has already, or nothing.
    pub fn line_with(&self, inserted: &str) -> String {
        self.line_from(self.keyword_length, inserted, &[])
    }

    /// As [`CommandWords::line_with`], with `inserted` also before all further programs.
    pub fn line_with_each(&self, inserted: &str) -> String {
        self.line_from(self.keyword_length, inserted, &self.further)
    }

    /// The part of the command that the launcher starts, for a shell, with `inserted` before the
    /// program.
    pub fn line_after_launcher(&self, inserted: &str) -> String {
        self.line_from(self.started, inserted, &[])
    }

    /// The words from `start` on, with `inserted` before the program and before `others`.
    fn line_from(&self, start: usize, inserted: &str, others: &[usize]) -> String {
        let parts = (start..self.words.len()).flat_map(|index| {
            let is_place = index == self.program || others.contains(&index);
            let inserted = (is_place && !inserted.is_empty()).then(|| inserted.to_owned());
            inserted.into_iter().chain([shell_word(self.words[index].as_bytes())])
        });
        parts.collect::<Vec<_>>().join(" ")
    }
}

/// True if `word` is no option and names a file that this user may run.
fn is_program(word: &OsString) -> bool {
    let is_option = word.as_bytes().starts_with(b"-");
    !is_option && find_program(word).is_some_and(|path| path.is_file() && may_run(&path))
}

/// The index of the first word from `start` on that belongs to no wrapper.
fn skip_wrappers(words: &[OsString], start: usize) -> usize {
    let mut index = start;
    loop {
        match wrapper_length(&words[index..]) {
            0 => return index,
            length => index += length,
        }
    }
}

fn with_space(line: String) -> String {
    if line.is_empty() { line } else { line + " " }
}

fn launcher(word: &OsStr) -> Option<JobLauncher<'static>> {
    let name = Path::new(word).file_name()?;
    LAUNCHERS.iter().find(|launcher| name == launcher.name).copied()
}

fn line_of(words: &[OsString]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| shell_word(word.as_bytes())).collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<CommandWords> {
        CommandWords::new(line.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn the_program_follows_a_launcher_and_its_options() {
        for (line, program, launcher) in [
            ("sh -c true", "sh", None),
            ("mpirun -n 4 sh -c true", "sh", Some("mpirun")),
            ("/opt/bin/mpiexec --host no-such,host -np 2 /bin/sh x", "/bin/sh", Some("mpiexec")),
            ("srun --ntasks=2 env A=b sh", "sh", Some("srun")),
            ("env A=1 timeout 60 mpirun -n 2 nice sh x", "sh", Some("mpirun")),
            ("env A=1 ./x", "./x", None),
            ("env", "env", None),
            ("nohup nice -n 5 no-such-program env", "no-such-program", None),
            ("no-such-program x", "no-such-program", None),
        ] {
            let words = words(line).expect("a program");
            let found = words.launcher().map(|launcher| launcher.name);
            assert_eq!((words.program(), found), (OsStr::new(program), launcher), "{line}");
        }
        for line in ["mpirun", "mpirun -n 4 no-such-program"] {
            let error = words(line).expect_err("no program");
            assert_eq!(error.kind(), Kind::NotFound);
            assert!(error.to_string().contains(line), "{error}");
        }
    }

    #[test]
    fn lines_can_be_pasted() {
        let words = |words: &[&str]| {
            CommandWords::new(words.iter().map(OsString::from).collect()).expect("a program")
        };
        let launched = words(&["mpirun", "-n", "4", "sh", "a b"]);
        assert_eq!(launched.line_with(""), "mpirun -n 4 sh 'a b'");
        assert_eq!(launched.line_with("env A=1"), "mpirun -n 4 env A=1 sh 'a b'");
        assert_eq!(words(&["sh"]).line_with("mpirun"), "mpirun sh");
        let launched = words(&["sh", "x"]).launched_by(&["srun", "-n", "4"]).expect("a program");
        assert!(launched.is_of_slurm());
        assert_eq!(launched.line_with(""), "srun -n 4 sh x");
        let wrapped = words(&["env", "A=1", "srun", "nice", "sh", "x"]);
        assert_eq!(wrapped.before_launcher(), "env A=1 ");
        assert_eq!(wrapped.line_after_launcher("y"), "nice y sh x");
    }

    #[test]
    fn a_keyword_of_the_shell_stays_before_the_command() {
        let words = words("time -p sh x").expect("a program");
        assert_eq!(words.program(), "sh");
        let is_keyword = find_program("time".as_ref()).is_none();
        let expected = if is_keyword { ("time -p ", "sh x") } else { ("", "time -p sh x") };
        assert_eq!((words.keyword().as_str(), words.line_with("").as_str()), expected);
    }

    #[test]
    fn a_launcher_may_start_several_programs() {
        let words = words("mpirun -n 1 sh a : -n 2 env A=1 ls b : cat").expect("a program");
        assert_eq!(words.program(), "sh");
        assert_eq!(words.further_programs().collect::<Vec<_>>(), ["ls", "cat"]);
        assert_eq!(words.line_with("x"), "mpirun -n 1 x sh a : -n 2 env A=1 ls b : cat");
        assert_eq!(words.line_with_each("x"), "mpirun -n 1 x sh a : -n 2 env A=1 x ls b : x cat");
    }
}
