// SPDX-License-Identifier: Apache-2.0
//! Way commands: what to paste into a shell to run a program in one of its ways.
//!
//! Names in them are free when they are printed: that of the directory, and that under which the
//! result is published.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use esker_base::store::url;
use esker_base::{Kind, shell_word};
use esker_fs::names;

use super::batch_commands::{BATCH_DIRECTORY, mount_commands, run_at_commands};
use super::called_functions::mpi_library;
use super::command_words::CommandWords;
use super::elf_file::ElfFile;
use super::program_file::{ProgramContent, ProgramFile};
use super::program_way::ProgramWay;
use super::search_path::may_write;
use crate::context::CommandContext;

/// The library in front of MPI, and where the guide installs it.
const MPI_LIBRARY: &str = "libesker_mpiio.so";
const MPI_LIBRARY_PATH: &str = "$HOME/esker/lib/libesker_mpiio.so";
/// Names that are tried before the number is given up.
const NAMES_MAX: u32 = 1000;

/// The names that the commands use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandNames {
    /// Commands that make a store, or choose it.
    before: Vec<String>,
    /// The directory at which files are shown.
    directory: String,
    /// The name under which the result is published.
    result: String,
}

impl CommandNames {
    /// Chooses names for the working directory and the store of `context`.
    pub fn choose(context: &CommandContext) -> Self {
        let root = match may_write(Path::new(".")) {
            true => PathBuf::new(),
            false => std::env::temp_dir(),
        };
        let is_free = |name: &String| is_usable(&root.join(name));
        let directory = first_name("esker-files", is_free);
        let directory = word_of(&root.join(directory));
        let (url, before) = match context.given_store() {
            Some(url) => (url.to_owned(), commands_for_given(url)),
            None => own_store(&root),
        };
        let store = url::open(&url).ok();
        let is_unpublished = |name: &String| {
            store.as_ref().is_none_or(|store| !names::is_taken(&**store, name).unwrap_or(false))
        };
        Self { before, directory, result: first_name("result", is_unpublished) }
    }

    /// The commands that run `program` in `way`.
    pub fn commands(
        &self,
        way: ProgramWay,
        words: &CommandWords,
        program: &ProgramFile,
    ) -> Vec<String> {
        let Self { before, directory, result } = self;
        let inserted = inserted_before(words, program);
        let keyword = words.keyword();
        let line = format!("{keyword}{}", words.line_with(inserted));
        // The kernel admits only the user who mounts, unless told otherwise.
        let options = if program.changes_user() { "--allow-other " } else { "" };
        let mut own = match way {
            ProgramWay::RunAt if words.is_of_slurm() => run_at_commands(words, inserted, result),
            ProgramWay::Mount if words.is_of_slurm() => mount_commands(&line, options, result),
            // What other launchers need to start one process on each node is unknown.
            _ if is_for_nodes(way, words) => return Vec::new(),
            ProgramWay::RunAt => {
                let line = words.line_with(inserted);
                vec![format!("{keyword}esker run --at {directory} --write {result} -- {line}")]
            }
            ProgramWay::Mount => vec![
                format!("mkdir -p {directory}"),
                format!("esker mount {options}--write {result} {directory} && {line}"),
                format!("esker umount {directory}"),
            ],
            ProgramWay::MpiIo => vec![
                "export LD_LIBRARY_PATH=$HOME/esker/lib:$LD_LIBRARY_PATH".into(),
                format!("export ESKER_MPIIO_AT=/esker ESKER_MPIIO_WRITE={result}"),
                mpi_io_line(words),
            ],
            ProgramWay::Library => return Vec::new(),
        };
        if words.is_of_slurm() {
            own.iter_mut().for_each(|line| *line = with_job_id(line, words));
        }
        before.iter().cloned().chain(own).collect()
    }

    /// The words above the commands of the first way.
    pub fn heading(way: ProgramWay, words: &CommandWords) -> &'static str {
        match way {
            ProgramWay::RunAt | ProgramWay::Mount if words.is_of_slurm() => {
                "Paste into a batch script:"
            }
            _ => "Paste:",
        }
    }

    /// The use that the commands make of the files, in sentences.
    pub fn explanation(&self, way: ProgramWay, words: &CommandWords) -> String {
        let result = &self.result;
        if is_for_nodes(way, words) && !words.is_of_slurm() {
            return String::new();
        }
        match way {
            ProgramWay::RunAt | ProgramWay::Mount => {
                let mut said = self.explanation_of_directory(words);
                said.push_str(&format!(
                    " What it leaves there is published as {result}. Add --base NAME to begin with \
                     the snapshot NAME."
                ));
                if way == ProgramWay::Mount && !words.is_of_slurm() {
                    said.push_str(" That is so also if the program fails.");
                }
                if words.is_of_slurm() && way == ProgramWay::RunAt {
                    said.push_str(
                        " `esker run -n` starts the ranks of a node, as many as the job's \
                         --ntasks-per-node. The options of your srun are left out: add those that \
                         the program needs.",
                    );
                }
                said
            }
            ProgramWay::MpiIo => format!(
                "Files whose names begin with /esker are published as {result}. \
                 The guide mpi-io.md says how to build the library."
            ),
            ProgramWay::Library => String::new(),
        }
    }

    /// Where the program finds the files, and what its command lacks for that.
    fn explanation_of_directory(&self, words: &CommandWords) -> String {
        let (directory, whose) = match words.is_of_slurm() {
            true => (BATCH_DIRECTORY.to_owned(), "the files of its node"),
            false => (self.directory.clone(), "the files"),
        };
        let is_named = |word: &OsString| word.to_string_lossy().contains(&directory);
        match words.all().iter().any(is_named) {
            true => format!("The program finds {whose} in {directory}."),
            false => format!(
                "The program finds {whose} in {directory}, but no word of the command names that \
                 directory: give the program paths in it, such as {directory}/FILE."
            ),
        }
    }
}

/// Lets the shell of a batch script replace the variable in words that name its directory.
fn with_job_id(line: &str, words: &CommandWords) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-=:,+%@$".contains(&byte);
    let named = words.all().iter().filter_map(|word| word.to_str());
    let named = named.filter(|word| word.contains(BATCH_DIRECTORY) && word.bytes().all(is_plain));
    named.fold(line.to_owned(), |line, word| {
        line.replace(&shell_word(word.as_bytes()), &format!("\"{word}\""))
    })
}

/// True if the commands of `way` would have to start one process on each node.
fn is_for_nodes(way: ProgramWay, words: &CommandWords) -> bool {
    let uses_daemons = words.launcher().is_some_and(|launcher| launcher.uses_daemons);
    uses_daemons && matches!(way, ProgramWay::RunAt | ProgramWay::Mount)
}

/// The word that a shell needs before the program to run it without Esker.
fn inserted_before(words: &CommandWords, program: &ProgramFile) -> &'static str {
    match &program.content {
        // The kernel runs no text without `#!`; a shell does.
        ProgramContent::ShellText => "sh",
        ProgramContent::Elf(ElfFile::Native(native)) if mpi_library(native).is_some() => {
            launcher_of(words)
        }
        _ => "",
    }
}

/// The launcher to add to an MPI program that has none.
fn launcher_of(words: &CommandWords) -> &'static str {
    if words.launcher().is_some() { "" } else { "mpirun -n 4" }
}

/// The program below its launcher, with the library in front.
fn mpi_io_line(words: &CommandWords) -> String {
    let library = match mpi_library_path() {
        Some(path) => word_of(&path),
        None => MPI_LIBRARY_PATH.to_owned(),
    };
    let inserted = format!("{} env LD_PRELOAD={library}", launcher_of(words));
    format!("{}{}", words.keyword(), words.line_with_each(inserted.trim_start()))
}

/// True if files can be shown at `path`: nothing is there, or an empty directory.
fn is_usable(path: &Path) -> bool {
    match std::fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Where the library in front of MPI is, if it is where the guide installs it or where the dynamic
/// linker is told to search.
pub fn mpi_library_path() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join("esker/lib"));
    let searched = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let searched: Vec<PathBuf> = std::env::split_paths(&searched).collect();
    let found = home.into_iter().chain(searched).map(|path| path.join(MPI_LIBRARY));
    found.into_iter().find(|path| path.is_file())
}

/// The commands before others for a store that was given: none if the environment names it.
fn commands_for_given(given: &str) -> Vec<String> {
    let mut before = Vec::new();
    if std::env::var("ESKER_STORE").ok().as_deref() != Some(given) {
        before.push(format!("export ESKER_STORE={}", shell_word(given.as_bytes())));
    }
    if is_absent(given) {
        before.push("esker init".into());
    }
    before
}

/// The URL of a store below `root`, which may exist, and the commands that choose or make it.
fn own_store(root: &Path) -> (String, Vec<String>) {
    let usable = |name: &String| {
        let url = root.join(name).to_string_lossy().into_owned();
        let is_new = !root.join(name).exists();
        is_new || (may_write(&root.join(name)) && url::open(&url).is_ok())
    };
    let name = first_name("store", usable);
    let url = root.join(&name).to_string_lossy().into_owned();
    let shown = match root.as_os_str().is_empty() {
        true => format!("$PWD/{name}"),
        false => word_of(&root.join(&name)),
    };
    let mut before = vec![format!("export ESKER_STORE={shown}")];
    if is_absent(&url) {
        before.push("esker init".into());
    }
    (url, before)
}

fn is_absent(url: &str) -> bool {
    url::open(url).is_err_and(|error| error.kind() == Kind::NotFound)
}

/// The first of `stem`, `stem-2`, `stem-3`, … that is `usable`.
fn first_name(stem: &str, usable: impl Fn(&String) -> bool) -> String {
    let numbered = (2..=NAMES_MAX).map(|number| format!("{stem}-{number}"));
    let mut names = std::iter::once(stem.to_owned()).chain(numbered);
    names.find(usable).unwrap_or_else(|| stem.to_owned())
}

fn word_of(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    shell_word(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::programs::doctor::elf_file::NativeProgram;
    use crate::commands::programs::doctor::gained_privilege::GainedPrivilege;

    fn names() -> CommandNames {
        CommandNames {
            before: vec!["esker init".into()],
            directory: "files".into(),
            result: "result".into(),
        }
    }

    fn words(line: &[&str]) -> CommandWords {
        CommandWords::new(line.iter().map(OsString::from).collect()).expect("a program")
    }

    fn commands(way: ProgramWay, content: ProgramContent, line: &[&str]) -> Vec<String> {
        let names = names();
        let program = ProgramFile {
            path: "/bin/x".into(),
            interpreters: Vec::new(),
            content,
            privileges: Vec::new(),
        };
        names.commands(way, &words(line), &program)
    }

    #[test]
    fn each_way_has_its_commands() {
        let native = || ProgramContent::Elf(ElfFile::Native(NativeProgram::default()));
        let line = ["x", "a b"];
        assert_eq!(
            commands(ProgramWay::RunAt, native(), &line),
            ["esker init", "esker run --at files --write result -- x 'a b'"]
        );
        assert_eq!(
            commands(ProgramWay::RunAt, ProgramContent::ShellText, &line)[1],
            "esker run --at files --write result -- sh x 'a b'"
        );
        assert_eq!(
            commands(ProgramWay::Mount, native(), &line)[1..],
            ["mkdir -p files", "esker mount --write result files && x 'a b'", "esker umount files"]
        );
        let line = ["mpirun", "-n", "2", "sh", "x"];
        assert_eq!(
            commands(ProgramWay::MpiIo, native(), &line)[3],
            format!("mpirun -n 2 env LD_PRELOAD={MPI_LIBRARY_PATH} sh x")
        );
        assert!(commands(ProgramWay::Library, native(), &line).is_empty());
        let line = ["mpirun", "sh", ":", "ls"];
        assert_eq!(
            commands(ProgramWay::MpiIo, native(), &line)[3],
            format!(
                "mpirun env LD_PRELOAD={MPI_LIBRARY_PATH} sh : env LD_PRELOAD={MPI_LIBRARY_PATH} ls"
            )
        );
    }

    /// Symptom: `esker doctor -- srun ./x` said to mount where one types.
    /// Cause: all launchers had the commands of one node.
    /// Fix: `srun` has those of a batch script; launchers of unknown options have none.
    #[test]
    fn daemons_need_commands_on_each_node() {
        let native = || ProgramContent::Elf(ElfFile::Native(NativeProgram::default()));
        for way in [ProgramWay::RunAt, ProgramWay::Mount] {
            let printed = commands(way, native(), &["srun", "-n", "8", "sh"]).join("\n");
            assert!(printed.contains("--ntasks-per-node=1"), "{printed}");
            assert!(printed.contains("esker publish --job $job"), "{printed}");
            assert!(commands(way, native(), &["jsrun", "-n", "8", "sh"]).is_empty());
        }
    }

    #[test]
    fn a_mount_admits_the_user_of_a_set_user_id_program() {
        let content = ProgramContent::Elf(ElfFile::Native(NativeProgram::default()));
        let privileges = vec![GainedPrivilege::SetUserId(0)];
        let path = "/bin/x".into();
        let program = ProgramFile { path, interpreters: Vec::new(), content, privileges };
        let commands = names().commands(ProgramWay::Mount, &words(&["x"]), &program);
        assert_eq!(commands[2], "esker mount --allow-other --write result files && x");
    }

    #[test]
    fn a_command_without_a_path_there_is_told_so() {
        for (line, is_named) in [
            (&["x", "files/one"][..], true),
            (&["sh", "-c", "cd files; ls"], true),
            (&["x", "other"], false),
            (&["srun", "sh", "files/one"], false),
        ] {
            let said = names().explanation(ProgramWay::RunAt, &words(line));
            assert_eq!(!said.contains("no word of the command"), is_named, "{said}");
        }
    }

    #[test]
    fn names_that_are_taken_get_a_number() {
        assert_eq!(first_name("a", |_| true), "a");
        assert_eq!(first_name("a", |name| name.ends_with('3')), "a-3");
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("store")).expect("a directory");
        let (url, before) = own_store(root.path());
        assert!(url.ends_with("store-2"), "{url}");
        assert_eq!(before.len(), 2);
        url::init(&url).expect("a store");
        let (again, before) = own_store(root.path());
        assert_eq!((again, before.len()), (url, 1));
    }
}
