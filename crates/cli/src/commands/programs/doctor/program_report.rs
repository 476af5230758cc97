// SPDX-License-Identifier: Apache-2.0
//! Program report: what a program is, the ways in which it can use Esker, and the commands.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use esker_base::{Error, Kind, Result, shell_word};
use serde_json::{Map, Value, json};

use super::command_words::CommandWords;
use super::elf_file::{ElfFile, native_name};
use super::machine::machine_ways;
use super::program_file::{ProgramContent, ProgramFile};
use super::program_way::{ProgramWay, ProgramWays};
use super::search_path::find_program;
use super::store_checks;
use super::way_commands::CommandNames;
use crate::context::CommandContext;
use crate::text;

/// Libraries that the text names; JSON has all.
const LIBRARIES_SHOWN: usize = 4;

/// The answer for one command.
pub struct ProgramReport {
    /// The words of the user.
    given: Vec<OsString>,
    /// These, with a launcher if the program needs one that only this machine's job system has.
    words: CommandWords,
    program: ProgramFile,
    ways: ProgramWays,
    names: CommandNames,
    /// Why the given store cannot be used.
    unusable: Option<Error>,
}

impl ProgramReport {
    /// Reads the program of a command, and checks this machine for the ways that it needs.
    ///
    /// # Errors
    /// As [`ProgramFile::find`].
    pub fn new(context: &CommandContext, words: CommandWords) -> Result<Self> {
        let program = ProgramFile::find(words.program())?;
        let given = words.all().to_vec();
        let words = match program.is_mpi() && words.launcher().is_none() && has_only_srun() {
            true => words.launched_by(&["srun", "-n", "4"])?,
            false => words,
        };
        let mut ways = ProgramWays::decide(&program, words.launcher(), &machine_ways());
        if let Some(further) = words.further_programs().next() {
            ways.ways[0].1.push(format!(
                "only the first program, {}, was read: `esker doctor -- {}` reads another",
                words.program().display(),
                shell_word(further.as_bytes())
            ));
        }
        if words.is_elsewhere() {
            ways.ways[0].1.push(format!(
                "but what {} starts elsewhere, or later, does not see the files: ask about that \
                 program, and put its commands there",
                words.program().display()
            ));
        }
        let unusable = context.given_store().and_then(|url| store_checks::obstacle(url).err());
        if let Some(error) = &unusable {
            ways.missing.push(format!("the store cannot be used: {error}"));
        }
        let names = CommandNames::choose(context);
        Ok(Self { given, words, program, ways, names, unusable })
    }

    /// Prints the answer.
    pub fn print(&self, context: &CommandContext) -> Result<()> {
        if context.out.is_json() {
            return context.out.json(self.document());
        }
        let line = |label: &str, what: &str| {
            let what = text::printable(what.as_bytes());
            context.out.line(format!("{label:<9} {what}"))
        };
        line("program", &self.description())?;
        for (index, (way, reasons)) in self.ways.ways.iter().enumerate() {
            line(if index == 0 { "way" } else { "or" }, way.title())?;
            for (index, reason) in reasons.iter().enumerate() {
                line(if index == 0 { "  because" } else { "  and" }, reason)?;
            }
            if *way == ProgramWay::RunAt {
                let differences = &self.ways.differences;
                differences.iter().try_for_each(|difference| line("  but", difference))?;
            }
        }
        self.ways.missing.iter().try_for_each(|missing| line("missing", missing))?;
        for (index, (way, _)) in self.ways.ways.iter().enumerate() {
            let commands = self.commands(*way);
            if commands.is_empty() {
                continue;
            }
            let heading = match index {
                0 => CommandNames::heading(*way, &self.words),
                _ if *way == ProgramWay::Mount => {
                    "Or, with a mount, which publishes also what a program that failed has left:"
                }
                _ => "Or, with the other way:",
            };
            context.out.line(format!("\n{heading}"))?;
            commands.iter().try_for_each(|command| context.out.line(format!("  {command}")))?;
        }
        match self.names.explanation(self.ways.ways[0].0, &self.words) {
            explanation if explanation.is_empty() || self.unusable.is_some() => Ok(()),
            explanation => context.out.line(format!("\n{explanation}")),
        }
    }

    /// The commands of a way, of which none works without a store.
    fn commands(&self, way: ProgramWay) -> Vec<String> {
        match self.unusable {
            Some(_) => Vec::new(),
            None => self.names.commands(way, &self.words, &self.program),
        }
    }

    /// The result of the command.
    ///
    /// # Errors
    /// `Unsupported` if the program cannot use Esker here unless it is changed; the store's, if it
    /// cannot be used.
    pub fn outcome(&self) -> Result<()> {
        if let Some(error) = &self.unusable {
            return Err(Error::new(error.kind(), error.to_string()));
        }
        if self.ways.ways[0].0 != ProgramWay::Library {
            return Ok(());
        }
        let what = format!(
            "{}: cannot use Esker here as it is; the lines above say what to ask the administrator \
             for",
            self.program.path.display()
        );
        Err(Error::new(Kind::Unsupported, what))
    }

    /// The program in a line.
    fn description(&self) -> String {
        let mut shown = self.program.path.display().to_string();
        for interpreter in &self.program.interpreters {
            shown.push_str(&format!(", a script of {}", interpreter.display()));
        }
        shown.push_str(": ");
        shown.push_str(&match &self.program.content {
            ProgramContent::Unreadable => "you may not read it".to_owned(),
            ProgramContent::ShellText => "a text without `#!`, which only a shell runs".to_owned(),
            ProgramContent::Elf(ElfFile::Foreign(machine)) => format!("for {}", machine.name),
            ProgramContent::Elf(ElfFile::Native(native)) if native.is_static() => {
                let language = if native.is_go { "Go, " } else { "" };
                format!("{}, {language}linked statically", native_name())
            }
            ProgramContent::Elf(ElfFile::Native(native)) => {
                let libraries = &native.libraries;
                let first: Vec<&str> =
                    libraries.iter().take(LIBRARIES_SHOWN).map(String::as_str).collect();
                let more = match libraries.len().saturating_sub(LIBRARIES_SHOWN) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let language = if native.is_go { "Go, " } else { "" };
                format!("{}, {language}needs {}{more}", native_name(), first.join(", "))
            }
        });
        for privilege in &self.program.privileges {
            shown.push_str(&format!(", {privilege}"));
        }
        shown
    }

    /// The answer as JSON; docs/guide/command.md describes it.
    fn document(&self) -> Value {
        let mut document = Map::new();
        let words = self.given.iter().map(|word| word.to_string_lossy());
        document.insert("command".into(), words.collect::<Vec<_>>().into());
        text::put_bytes(&mut document, "program", self.program.path.as_os_str().as_bytes());
        let interpreters = self.program.interpreters.iter().map(|path| path.to_string_lossy());
        document.insert("interpreters".into(), interpreters.collect::<Vec<_>>().into());
        document
            .insert("launcher".into(), self.words.launcher().map(|launcher| launcher.name).into());
        let (format, machine, native) = match &self.program.content {
            ProgramContent::Elf(ElfFile::Native(native)) => {
                ("elf", Some(native_name()), Some(native))
            }
            ProgramContent::Elf(ElfFile::Foreign(machine)) => {
                ("elf", Some(machine.name.clone()), None)
            }
            ProgramContent::ShellText => ("text", None, None),
            ProgramContent::Unreadable => ("unreadable", None, None),
        };
        document.insert("format".into(), format.into());
        document.insert("machine".into(), machine.into());
        document.insert("is_static".into(), native.map(|native| native.is_static()).into());
        document.insert("is_go".into(), native.map(|native| native.is_go).into());
        document.insert("linker".into(), native.and_then(|native| native.linker.clone()).into());
        let libraries = native.map_or(Vec::new(), |native| native.libraries.clone());
        document.insert("libraries".into(), libraries.into());
        let privileges = self.program.privileges.iter().map(ToString::to_string);
        document.insert("privileges".into(), privileges.collect::<Vec<_>>().into());
        let ways = self.ways.ways.iter().map(|(way, reasons)| {
            let commands = self.commands(*way);
            json!({"way": way.word(), "reasons": reasons, "commands": commands})
        });
        document.insert("ways".into(), ways.collect::<Vec<_>>().into());
        document.insert("differences".into(), self.ways.differences.clone().into());
        document.insert("missing".into(), self.ways.missing.clone().into());
        document.into()
    }
}

/// True if `srun` is the only launcher of MPI programs on this machine.
fn has_only_srun() -> bool {
    let has = |name: &str| find_program(name.as_ref()).is_some();
    has("srun") && !has("mpirun")
}
