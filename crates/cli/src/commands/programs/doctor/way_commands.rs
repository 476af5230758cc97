// SPDX-License-Identifier: Apache-2.0
//! Way commands: what to paste into a shell to run a program in one of its ways.
//!
//! Names in them are free when they are printed: that of the directory, and that under which the
//! result is published.

use std::path::{Path, PathBuf};

use esker_base::store::url;
use esker_base::{Kind, shell_word};
use esker_fs::names;

use super::called_functions::mpi_library;
use super::command_words::CommandWords;
use super::elf_file::ElfFile;
use super::program_file::{ProgramContent, ProgramFile};
use super::program_way::ProgramWay;
use super::search_path::{find_program, may_write};
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
        let line = line_of(words, program);
        let own = match way {
            ProgramWay::RunAt => {
                vec![format!("esker run --at {directory} --write {result} -- {line}")]
            }
            ProgramWay::Mount => vec![
                format!("mkdir -p {directory}"),
                format!("esker mount --write {result} {directory}"),
                line,
                format!("esker umount {directory}"),
            ],
            ProgramWay::MpiIo => vec![
                "export LD_LIBRARY_PATH=$HOME/esker/lib:$LD_LIBRARY_PATH".into(),
                format!("export ESKER_MPIIO_AT=/esker ESKER_MPIIO_WRITE={result}"),
                mpi_io_line(words),
            ],
            ProgramWay::Library => return Vec::new(),
        };
        before.iter().cloned().chain(own).collect()
    }

    /// What the commands do with the files, in a sentence.
    pub fn explanation(&self, way: ProgramWay) -> String {
        let Self { directory, result, .. } = self;
        match way {
            ProgramWay::RunAt | ProgramWay::Mount => format!(
                "The program finds the files in {directory}: give it paths there. What it leaves \
                 there is published as {result}. Add --base NAME to begin with the snapshot NAME."
            ),
            ProgramWay::MpiIo => format!(
                "Files whose names begin with /esker are published as {result}. \
                 The guide mpi-io.md says how to build the library."
            ),
            ProgramWay::Library => String::new(),
        }
    }
}

/// The command as it runs without Esker.
fn line_of(words: &CommandWords, program: &ProgramFile) -> String {
    match &program.content {
        // The kernel runs no text without `#!`; a shell does.
        ProgramContent::ShellText => words.line_with("sh"),
        ProgramContent::Elf(ElfFile::Native(native)) if mpi_library(native).is_some() => {
            words.line_with(launcher_of(words))
        }
        _ => words.line_with(""),
    }
}

/// The launcher to add to an MPI program that has none.
fn launcher_of(words: &CommandWords) -> &'static str {
    let has = |name: &str| find_program(name.as_ref()).is_some();
    match words.launcher() {
        Some(_) => "",
        None if !has("mpirun") && has("srun") => "srun -n 4",
        None => "mpirun -n 4",
    }
}

/// The program below its launcher, with the library in front.
fn mpi_io_line(words: &CommandWords) -> String {
    let library = match mpi_library_path() {
        Some(path) => word_of(&path),
        None => MPI_LIBRARY_PATH.to_owned(),
    };
    words.line_with(format!("{} env LD_PRELOAD={library}", launcher_of(words)).trim_start())
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

    fn commands(way: ProgramWay, content: ProgramContent, line: &[&str]) -> Vec<String> {
        let names = CommandNames {
            before: vec!["esker init".into()],
            directory: "files".into(),
            result: "result".into(),
        };
        let program = ProgramFile {
            path: "/bin/x".into(),
            interpreters: Vec::new(),
            content,
            privileges: Vec::new(),
        };
        let words = CommandWords::new(line.iter().map(std::ffi::OsString::from).collect());
        let words = words.expect("a program");
        names.commands(way, &words, &program)
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
            ["mkdir -p files", "esker mount --write result files", "x 'a b'", "esker umount files"]
        );
        let line = ["mpirun", "-n", "2", "sh", "x"];
        assert_eq!(
            commands(ProgramWay::MpiIo, native(), &line)[3],
            format!("mpirun -n 2 env LD_PRELOAD={MPI_LIBRARY_PATH} sh x")
        );
        assert!(commands(ProgramWay::Library, native(), &line).is_empty());
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
