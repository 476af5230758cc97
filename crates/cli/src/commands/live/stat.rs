// SPDX-License-Identifier: Apache-2.0
//! `esker live stat`: shows attributes of files of live namespaces, and the seats that have them.

use std::process::ExitCode;

use clap::Args;
use esker_base::Result;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::traversal::walk::normalized;

use super::trees::{for_each_path, inode_at, seats_of};
use crate::commands::read::stat::{show_attributes, show_field};
use crate::context::CommandContext;
use crate::location::StackPath;
use crate::text;
use crate::users::UserNames;

/// Show attributes of files of a live namespace, and the seats that have them
#[derive(Args)]
#[command(after_help = "Example:\n  esker live stat run:/results")]
pub struct LiveStatArguments {
    /// The files
    #[arg(required = true, value_name = "NAME:/path", value_parser = StackPath::parser())]
    paths: Vec<StackPath>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
}

impl LiveStatArguments {
    /// Shows.
    pub fn run(self, context: &CommandContext) -> Result<ExitCode> {
        let users = UserNames::of_machine();
        let follow = if self.dereference { FollowLinks::Yes } else { FollowLinks::No };
        for_each_path(context, &self.paths, |tree, location| {
            let place = tree.resolve(&location.path, follow)?;
            let (inode, seats) = (inode_at(tree, &place)?, seats_of(&place));
            let path = normalized(&location.path);
            if context.out.is_json() {
                let mut object = text::entry(&path, &inode);
                object.insert("seats".into(), seats.into());
                return context.out.json(object);
            }
            show_attributes(context, &users, &path, &inode)?;
            match &seats[..] {
                [seat] => show_field(context, "seat", seat.to_string()),
                seats => show_field(context, "seats", format!("all {}", seats.len())),
            }
        })
    }
}
