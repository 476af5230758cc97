// SPDX-License-Identifier: Apache-2.0
//! Commands, one per file.

mod advise;
mod advise_import;
mod advise_measure;
mod advise_model;
mod advise_paper;
mod advise_replay;
mod advise_show;
mod advise_storage;
mod advise_synth;
mod attributes;
mod bench;
mod cat;
mod chmod;
mod chown;
mod completions;
mod cp;
mod delete;
mod diff;
mod du;
mod exit_codes;
mod export;
pub mod find;
mod gc;
pub mod imd;
mod import;
mod init;
mod live;
mod live_files;
mod live_serve;
mod ln;
mod log;
mod ls;
mod manual;
mod mkdir;
mod mount;
mod mount_log;
mod mounts;
mod mv;
mod names;
mod publish;
mod put;
mod rm;
mod run;
mod run_foreground;
mod run_shown;
mod session;
mod show;
mod squash;
mod stat;
mod touch;
mod transfer;
mod tree;
mod umount;
mod verify;
mod workbench;
mod workbench_paper;
mod workbench_ranks;
mod workbench_target;

use std::process::ExitCode;

use clap::Subcommand;
use esker_base::Result;

use crate::change::SessionSettings;
use crate::context::CommandContext;
use crate::interrupt;
use crate::location::{StackArgument, StackPath};
use crate::usage;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    Init(init::InitCommand),
    Import(import::ImportCommand),
    Export(export::ExportCommand),
    Ls(ls::ListCommand),
    Stat(stat::StatCommand),
    Cat(cat::CatCommand),
    Find(find::FindCommand),
    Du(du::DuCommand),
    Tree(tree::TreeCommand),
    Diff(diff::DiffCommand),
    Put(put::PutCommand),
    Rm(rm::RemoveCommand),
    Mv(mv::MoveCommand),
    Mkdir(mkdir::MkdirCommand),
    Cp(cp::CopyCommand),
    Ln(ln::LinkCommand),
    Touch(touch::TouchCommand),
    Chmod(chmod::ChmodCommand),
    Chown(chown::ChownCommand),
    Chgrp(chown::ChgrpCommand),
    Mount(mount::MountCommand),
    Mounts(mounts::MountsCommand),
    Umount(umount::UmountCommand),
    Commit(umount::CommitCommand),
    Session(session::SessionCommand),
    Live(live::LiveCommand),
    Publish(publish::PublishCommand),
    Names(names::NamesCommand),
    Log(log::LogCommand),
    Show(show::ShowCommand),
    Squash(squash::SquashCommand),
    Compact(squash::CompactCommand),
    Rename(delete::RenameCommand),
    Delete(delete::DeleteCommand),
    Undelete(delete::UndeleteCommand),
    Gc(gc::GcCommand),
    Verify(verify::VerifyCommand),
    Imd(imd::ImdArguments),
    Bench(bench::BenchCommand),
    #[command(hide = true)]
    Segment(bench::SegmentCommand),
    Workbench(workbench::WorkbenchCommand),
    Advise(advise::AdviseCommand),
    Run(run::RunCommand),
    Completions(completions::CompletionsCommand),
    Manual(manual::ManualCommand),
    ExitCodes(exit_codes::ExitCodes),
}

impl Command {
    /// Makes a signal that ends the command clean up after it and report what is left.
    pub fn watch_signals(&self, context: &CommandContext) -> Result<()> {
        let advice = match self {
            Self::Import(_)
            | Self::Put(_)
            | Self::Rm(_)
            | Self::Mv(_)
            | Self::Mkdir(_)
            | Self::Cp(_)
            | Self::Ln(_)
            | Self::Touch(_)
            | Self::Chmod(_)
            | Self::Chown(_)
            | Self::Chgrp(_) => "nothing was changed; the same command again does all of it",
            Self::Export(_) => "nothing was exported yet; export it again",
            Self::Publish(_) => "nothing was published, and everything is kept; publish it again",
            Self::Squash(_) | Self::Imd(_) => {
                "no unfinished work is left: nothing was begun, or everything was published, which \
                 `esker names` shows"
            }
            Self::Workbench(_) => "nothing was changed",
            Self::Advise(_) => "nothing was loaded; the same command again does all of it",
            Self::Compact(_) => {
                "its contents are unchanged; the same command again compacts it, and `esker gc` \
                 frees the remains"
            }
            Self::Gc(_) => "part of it may be freed; the same command again frees the rest",
            Self::Verify(_) => "nothing was changed; run the same command again",
            _ => return Ok(()),
        };
        let store = context.given_store().map(str::to_owned);
        interrupt::watch(store, SessionSettings::for_few().options(context), advice)
    }

    /// Runs the command.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        match self {
            Self::Import(command) => return command.run(context),
            Self::Export(command) => return command.run(context),
            Self::Find(command) => return command.run(context),
            Self::Verify(command) => return command.run(context),
            Self::Run(command) => return command.run(context),
            Self::Session(command) => return command.run(context),
            Self::Live(command) => return command.run(context),
            Self::Names(command) => return command.run(context),
            Self::Ls(command) => return command.run(context),
            Self::Tree(command) => return command.run(context),
            Self::Du(command) => return command.run(context),
            Self::Diff(command) => return command.run(context),
            Self::Init(command) => command.run(context),
            Self::Stat(command) => command.run(context),
            Self::Cat(command) => command.run(context),
            Self::Put(command) => command.run(context),
            Self::Rm(command) => command.run(context),
            Self::Mv(command) => command.run(context),
            Self::Mkdir(command) => command.run(context),
            Self::Cp(command) => command.run(context),
            Self::Ln(command) => command.run(context),
            Self::Touch(command) => command.run(context),
            Self::Chmod(command) => command.run(context),
            Self::Chown(command) => command.run(context),
            Self::Chgrp(command) => command.run(context),
            Self::Mount(command) => command.run(context),
            Self::Mounts(command) => command.run(context),
            Self::Umount(command) => command.run(context),
            Self::Commit(command) => command.run(context),
            Self::Publish(command) => command.run(context),
            Self::Rename(command) => command.run(context),
            Self::Delete(command) => command.run(context),
            Self::Undelete(command) => command.run(context),
            Self::Log(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Squash(command) => command.run(context),
            Self::Compact(command) => command.run(context),
            Self::Gc(command) => command.run(context),
            Self::Imd(command) => command.run(context),
            Self::Segment(command) => command.run(context),
            Self::Bench(command) => command.run(context),
            Self::Workbench(command) => command.run(context),
            Self::Advise(command) => command.run(context),
            Self::Completions(command) => command.run(context),
            Self::Manual(command) => command.run(context),
            Self::ExitCodes(command) => command.run(context),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The stack that all of `locations` share.
fn one_stack(locations: &[StackPath]) -> &StackArgument {
    let first = &locations.first().expect("clap asks for one").stack;
    match locations.iter().find(|location| location.stack != *first) {
        None => first,
        Some(other) => {
            let what = "one command changes one name or session";
            usage::exit(format!("{other} is not in {first}: {what}"))
        }
    }
}
