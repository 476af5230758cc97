// SPDX-License-Identifier: Apache-2.0
//! Help: the commands in `esker --help`, by group.

use std::fmt::Write;

use clap::Command;

/// The groups, which are the folders here, and their commands.
const GROUPS: &[(&str, &[&str])] = &[
    ("Stores", &["init", "gc", "verify"]),
    ("Trees in and out", &["import", "export"]),
    ("Reading", &["ls", "stat", "cat", "find", "du", "tree", "diff"]),
    ("Changing", &["put", "rm", "mv", "mkdir", "cp", "ln", "touch", "chmod", "chown", "chgrp"]),
    (
        "Sessions and snapshots",
        &[
            "session", "publish", "names", "log", "show", "squash", "compact", "rename", "delete",
            "undelete",
        ],
    ),
    (
        "Programs, in a mount or without one",
        &["mount", "mounts", "umount", "commit", "run", "doctor"],
    ),
    ("Live namespaces and indexed directories", &["live", "imd"]),
    ("Measuring", &["bench", "workbench", "advise"]),
    ("This program", &["completions", "manual", "exit-codes"]),
];

/// Lists the subcommands of `command` by group in its help; they are hidden where it lists them
/// itself.
pub fn grouped(command: Command) -> Command {
    let header = *command.get_styles().get_header();
    let name_style = *command.get_styles().get_literal();
    let mut listed = String::new();
    for (heading, names) in GROUPS {
        writeln!(listed, "{header}{heading}:{header:#}").expect("strings grow");
        for name in *names {
            let subcommand = command.find_subcommand(name);
            let about = subcommand.and_then(Command::get_about).map(ToString::to_string);
            let about = about.unwrap_or_default();
            let written = writeln!(listed, "  {name_style}{name:<12}{name_style:#} {about}");
            written.expect("strings grow");
        }
        listed.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}{{all-args}}{{after-help}}"
    );
    command
        .mut_subcommands(|subcommand| subcommand.hide(true))
        .override_usage("esker [OPTIONS] <COMMAND>")
        .help_template(template)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::command_line::CommandLine;

    #[test]
    fn every_command_is_in_one_group_and_on_one_line() {
        let command = CommandLine::command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let visible = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
        let mut expected: Vec<(&str, usize)> = visible
            .map(|subcommand| {
                let about = subcommand.get_about().map(ToString::to_string);
                (subcommand.get_name(), about.expect("each has a line").len())
            })
            .collect();
        for (name, length) in &expected {
            assert!(15 + length <= 80, "the line of {name} is too long");
        }
        expected.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, expected.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
    }
}
