// SPDX-License-Identifier: Apache-2.0
//! Program file: the file that a command starts, and what its bytes and mode say about it.
//!
//! Nothing is run. Scripts are followed to their interpreters, as the kernel does.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use esker_base::{Error, Kind, Result, shell_word};

use super::called_functions;
use super::elf_file::{self, ElfFile, NativeProgram};
use super::gained_privilege::GainedPrivilege;
use super::script_line::{LINE_BYTES_MAX, ScriptLine};
use super::search_path::{find_program, may_run};

/// Scripts whose interpreter is a script, one after the other: the kernel's limit.
const INTERPRETERS_MAX: usize = 5;

/// A program, as far as its files show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFile {
    /// The file that the command names.
    pub path: PathBuf,
    /// The interpreters of a script, the last one being a program.
    pub interpreters: Vec<PathBuf>,
    /// The content of the last of these files.
    pub content: ProgramContent,
    /// The privileges that this user gains by running it.
    pub privileges: Vec<GainedPrivilege>,
}

/// The content of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramContent {
    /// Code for a processor.
    Elf(ElfFile),
    /// A text without `#!`, which a shell reads.
    ShellText,
    /// This user may run it, but not read it.
    Unreadable,
}

impl ProgramFile {
    /// True if the program runs as another user or group than its caller.
    pub fn changes_user(&self) -> bool {
        self.privileges.iter().any(|privilege| privilege.is_denied_mounts())
    }

    /// The facts about a program for this processor.
    pub fn native(&self) -> Option<&NativeProgram> {
        match &self.content {
            ProgramContent::Elf(ElfFile::Native(native)) => Some(native),
            _ => None,
        }
    }

    /// True if the program needs a library of MPI.
    pub fn is_mpi(&self) -> bool {
        self.native().is_some_and(|native| called_functions::mpi_library(native).is_some())
    }

    /// Finds the program that runs as `word`, and reads it.
    ///
    /// # Errors
    /// `NotFound`; `Denied` if this user may not run it; `IsADirectory`; `Invalid` if it is no
    /// program; `Loop` if its interpreters never end.
    pub fn find(word: &OsStr) -> Result<Self> {
        let path = find_program(word).ok_or_else(|| {
            let what = format!(
                "{}: no program of that name is on PATH: give its path, or add its directory to PATH",
                word.display()
            );
            Error::new(Kind::NotFound, what)
        })?;
        let mut interpreters: Vec<PathBuf> = Vec::new();
        loop {
            let last = interpreters.last().unwrap_or(&path);
            let opened = open(last).map_err(|error| match interpreters.is_empty() {
                true => error,
                false => error.within(format!("the interpreter of {}", path.display())),
            })?;
            let (content, privileges) = match opened {
                OpenedProgram::Unreadable(metadata) => {
                    (ProgramContent::Unreadable, GainedPrivilege::of_file(last, &metadata))
                }
                OpenedProgram::Readable(file, metadata) => match start_of(last, file)? {
                    FileStart::Program(content) => {
                        (content, GainedPrivilege::of_file(last, &metadata))
                    }
                    FileStart::Script(next) => {
                        if interpreters.len() == INTERPRETERS_MAX {
                            let what = format!(
                                "{}: its `#!` leads through more than {INTERPRETERS_MAX} \
                                 interpreters, and the kernel gives up, too: begin it with the \
                                 path of a program that is no script",
                                path.display()
                            );
                            return Err(Error::new(Kind::Loop, what));
                        }
                        interpreters.push(next);
                        continue;
                    }
                },
            };
            return Ok(Self { path, interpreters, content, privileges });
        }
    }
}

/// A file that this user may run.
enum OpenedProgram {
    Readable(File, Metadata),
    Unreadable(Metadata),
}

fn open(path: &Path) -> Result<OpenedProgram> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).map_err(|error| Error::io(error, shown.to_string()))?;
    if metadata.is_dir() {
        return Err(Error::new(Kind::IsADirectory, format!("{shown}: a directory, not a program")));
    }
    if !metadata.is_file() {
        return Err(Error::new(Kind::Invalid, format!("{shown}: not a regular file")));
    }
    if !may_run(path) {
        let what = format!("{shown}: you may not run it: see `ls -l` of it, and `chmod +x` it");
        return Err(Error::new(Kind::Denied, what));
    }
    match File::open(path) {
        Ok(file) => Ok(OpenedProgram::Readable(file, metadata)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Ok(OpenedProgram::Unreadable(metadata))
        }
        Err(error) => Err(Error::io(error, format!("open {shown}"))),
    }
}

/// The kind of file that the first bytes announce.
enum FileStart {
    Program(ProgramContent),
    /// A script, and the path of its interpreter.
    Script(PathBuf),
}

fn start_of(path: &Path, file: File) -> Result<FileStart> {
    let mut head = Vec::with_capacity(LINE_BYTES_MAX);
    let failed = |error| Error::io(error, format!("read {}", path.display()));
    (&file).take(LINE_BYTES_MAX as u64).read_to_end(&mut head).map_err(failed)?;
    if head.starts_with(elf_file::MAGIC) {
        let elf = elf_file::read(path, &file, &called_functions::wanted())?;
        return Ok(FileStart::Program(ProgramContent::Elf(elf)));
    }
    if let Some(line) = ScriptLine::parse(&head) {
        if line.argument.unwrap_or(line.interpreter).ends_with(b"\r") {
            let what = format!(
                "{0}: its lines end with a carriage return, as on Windows, and the kernel looks for an \
                 interpreter with that name: `sed -i 's/\\r$//' {1}` removes them",
                path.display(),
                shell_word(path.as_os_str().as_bytes())
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        let Some(started) = line.started_by_env() else {
            return Ok(FileStart::Script(OsString::from_vec(line.interpreter.to_vec()).into()));
        };
        let started = OsStr::from_bytes(started);
        let found = find_program(started).ok_or_else(|| {
            let what = format!(
                "{}: its interpreter {} is not on PATH: install it, or add its directory to PATH",
                path.display(),
                started.display()
            );
            Error::new(Kind::NotFound, what)
        })?;
        return Ok(FileStart::Script(found));
    }
    if head.is_empty() || head.contains(&0) || head.starts_with(b"#!") {
        let what = match head.as_slice() {
            [] => "is empty",
            [b'#', b'!', ..] => "begins with `#!`, but names no interpreter within 256 bytes",
            _ => "is neither an ELF program nor a script",
        };
        let what = format!("{} {what}, and the kernel cannot run it", path.display());
        return Err(Error::new(Kind::Invalid, what));
    }
    Ok(FileStart::Program(ProgramContent::ShellText))
}

#[cfg(test)]
mod tests;
