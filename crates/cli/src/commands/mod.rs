// SPDX-License-Identifier: Apache-2.0
//! Commands: one per file, in folders that are the groups of `esker --help`.

mod about;
mod change;
pub mod help;
pub mod imd;
mod live;
mod measure;
mod programs;
pub mod read;
mod snapshots;
mod store;
mod transfer;

use std::process::ExitCode;

use clap::Subcommand;
use esker_base::Result;

use crate::change::SessionSettings;
use crate::context::CommandContext;
use crate::interrupt;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    Init(store::init::InitCommand),
    Gc(store::gc::GcCommand),
    Verify(store::verify::VerifyCommand),
    Import(transfer::import::ImportCommand),
    Export(transfer::export::ExportCommand),
    Ls(read::ls::ListCommand),
    Stat(read::stat::StatCommand),
    Cat(read::cat::CatCommand),
    Find(read::find::FindCommand),
    Du(read::du::DuCommand),
    Tree(read::tree::TreeCommand),
    Diff(read::diff::DiffCommand),
    Put(change::put::PutCommand),
    Rm(change::rm::RemoveCommand),
    Mv(change::mv::MoveCommand),
    Mkdir(change::mkdir::MkdirCommand),
    Cp(change::cp::CopyCommand),
    Ln(change::ln::LinkCommand),
    Touch(change::touch::TouchCommand),
    Chmod(change::chmod::ChmodCommand),
    Chown(change::chown::ChownCommand),
    Chgrp(change::chown::ChgrpCommand),
    Session(snapshots::session::SessionCommand),
    Publish(snapshots::publish::PublishCommand),
    Names(snapshots::names::NamesCommand),
    Log(snapshots::log::LogCommand),
    Show(snapshots::show::ShowCommand),
    Squash(snapshots::squash::SquashCommand),
    Compact(snapshots::squash::CompactCommand),
    Rename(snapshots::delete::RenameCommand),
    Delete(snapshots::delete::DeleteCommand),
    Undelete(snapshots::delete::UndeleteCommand),
    Mount(programs::mount::MountCommand),
    Mounts(programs::mounts::MountsCommand),
    Umount(programs::umount::UmountCommand),
    Commit(programs::umount::CommitCommand),
    Run(programs::run::RunCommand),
    Doctor(programs::doctor::DoctorCommand),
    Live(live::LiveCommand),
    Imd(imd::ImdArguments),
    Bench(measure::bench::BenchCommand),
    Workbench(measure::workbench::WorkbenchCommand),
    Advise(measure::advise::AdviseCommand),
    Completions(about::completions::CompletionsCommand),
    Manual(about::manual::ManualCommand),
    ExitCodes(about::exit_codes::ExitCodes),
    #[command(hide = true)]
    Segment(measure::bench::SegmentCommand),
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
            Self::Live(command) => match command.advice_at_begin() {
                Some(advice) => advice,
                None => return Ok(()),
            },
            Self::Export(_) => "nothing was exported yet; export it again",
            Self::Publish(_) => "nothing was published, and everything is kept; publish it again",
            Self::Squash(_) | Self::Imd(_) => {
                "no unfinished work is left: nothing was begun, or everything was published, which \
                 `esker names` shows"
            }
            Self::Workbench(_) => "nothing was changed",
            Self::Advise(command) => match command.advice_at_begin() {
                Some(advice) => advice,
                None => return Ok(()),
            },
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
            Self::Advise(command) => return command.run(context),
            Self::Doctor(command) => return command.run(context),
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
            Self::Completions(command) => command.run(context),
            Self::Manual(command) => command.run(context),
            Self::ExitCodes(command) => command.run(context),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
