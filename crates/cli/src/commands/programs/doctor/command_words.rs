// SPDX-License-Identifier: Apache-2.0
//! Command words: which word of a command is its program, where a launcher such as `mpirun` comes
//! first.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use esker_base::{Error, Kind, Result, shell_word};

use super::search_path::{find_program, may_run};

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

/// A program that starts the ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLauncher<'a> {
    /// Its name.
    pub name: &'a str,
    /// True if daemons start the ranks, also those on the launcher's own node.
    pub uses_daemons: bool,
}

/// The words of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandWords {
    words: Vec<OsString>,
    /// Index of the program.
    program: usize,
}

impl CommandWords {
    /// The words of a command; there is at least one. After a launcher, the program is the first
    /// word that is no option and names a file that this user may run.
    ///
    /// # Errors
    /// `NotFound` if there is none after a launcher.
    pub fn new(words: Vec<OsString>) -> Result<Self> {
        let is_program = |word: &OsString| {
            let is_option = word.as_bytes().starts_with(b"-");
            !is_option && find_program(word).is_some_and(|path| path.is_file() && may_run(&path))
        };
        if launcher(&words[0]).is_none() {
            return Ok(Self { words, program: 0 });
        }
        let Some(behind) = words.iter().skip(1).position(is_program) else {
            let what = format!(
                "`{}`: no word after the launcher names a program that you may run: give its path",
                line_of(&words)
            );
            return Err(Error::new(Kind::NotFound, what));
        };
        Ok(Self { words, program: behind + 1 })
    }

    /// The program.
    pub fn program(&self) -> &OsStr {
        &self.words[self.program]
    }

    /// The launcher that starts the program.
    pub fn launcher(&self) -> Option<JobLauncher<'static>> {
        launcher(&self.words[0])
    }

    /// All words.
    pub fn all(&self) -> &[OsString] {
        &self.words
    }

    /// The command for a shell, with `inserted` before the program: words that a shell has already,
    /// or nothing.
    pub fn line_with(&self, inserted: &str) -> String {
        let (before, after) = self.words.split_at(self.program);
        let parts = [line_of(before), inserted.to_owned(), line_of(after)];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(" ")
    }
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
            ("srun --ntasks=2 env A=b sh", "env", Some("srun")),
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
    }
}
